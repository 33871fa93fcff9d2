"""Ports for services that must be told one before they start, because others are told it too."""

import contextlib
import itertools
import random
import socket

from draftwire.errors import Unavailable

#: Below the ports that systems give to those who ask for any (32768 and up). Each socket that is opened before a
#: service listens could take such a port of the service's, once in 7,000 times.
_PORTS = range(20_000, 32_000)

#: Where in _PORTS to look next. No port is given out twice, and another process begins elsewhere.
_candidates = itertools.count(random.randrange(len(_PORTS)))


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of `host` that nobody listens on at this moment, and that nobody gets by asking for any port.

    Raises Unavailable if all of them are taken.
    """
    for number in itertools.islice(_candidates, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise Unavailable(f"every port from {_PORTS.start} to {_PORTS.stop - 1} is taken")
