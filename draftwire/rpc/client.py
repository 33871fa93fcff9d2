"""Channels to other services: dead peers are noticed within seconds, and a peer that is back is found again quickly."""

import asyncio

import grpc

from draftwire.errors import InvalidArgument, Unavailable
from draftwire.rpc.limits import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # gRPC core never acts on the line above (grpc/grpc pull request 39239): what ends the connection is this one.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own backoff grows to two minutes, made for the internet; a restarted worker is to be used within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Each channel has its own connection, so that one peer's streams do not wait for another's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    # Workers are neighbours; an http_proxy meant for the internet must not see them.
    ("grpc.enable_http_proxy", 0),
)


def connect(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to "host:port"; it connects in the background, and again whenever the connection is lost.

    Args:
        credentials: for TLS; None = plain.

    Raises InvalidArgument("address") unless the text has that form.
    """
    host, colon, port = address.rpartition(":")
    if not host or not colon or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidArgument("address", f"must be host:port, got {address!r}")
    if credentials is not None:
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


async def wait_ready(channel: grpc.aio.Channel, address: str, within: float) -> None:
    """Wait until the channel is connected; raises Unavailable, naming the address, after `within` seconds."""
    try:
        await asyncio.wait_for(channel.channel_ready(), within)
    except TimeoutError:
        raise Unavailable(f"{address} cannot be reached within {within:g} s") from None
