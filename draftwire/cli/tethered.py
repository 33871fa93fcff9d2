"""`python -m draftwire.cli.tethered MODULE FLAGS...`: runs a service that ends with whoever started it.

The starter holds the other end of our standard input and never writes. When it is gone, however it went, the input
ends, and the service drains as upon SIGTERM; one that drains already exits at once, for nobody waits for it any more.
"""

import os
import runpy
import signal
import sys
import threading


def _end_with_the_starter() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """The process."""
    sys.argv.pop(0)
    threading.Thread(target=_end_with_the_starter, name="tether", daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
