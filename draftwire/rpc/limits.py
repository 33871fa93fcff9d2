"""Numbers that both ends of a connection must agree on."""

#: Largest message, both ways. Unit: bytes. A larger one fails its call, so senders of streams split before they write.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024

#: A client pings a silent connection after so long, and takes it for dead if no answer comes within the timeout.
KEEPALIVE_MS = 5_000
KEEPALIVE_TIMEOUT_MS = 2_000

#: Pings at shorter distances than this are abuse to a server; below KEEPALIVE_MS, because clocks differ.
MIN_PING_INTERVAL_MS = 3_000
