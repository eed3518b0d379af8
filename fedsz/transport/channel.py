"""How gRPC is used: as a pipe of byte strings, by generic methods without generated code."""

from __future__ import annotations

import logging
import re

import grpc

from fedsz.errors import ConfigError
from fedsz.formatting import one_line
from fedsz.transport.frames import MAX_FRAME_BYTES

# Warnings that an operator needs, also of a command without --verbose.
security = logging.getLogger("fedsz.security")

# gRPC logs the bytes of each header that is not UTF-8, with a traceback. The link refuses them.
_NO_TEXT = "Invalid encoding on %s"
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: record.msg != _NO_TEXT)

SERVICE = "fedsz.v1.Link"
METHOD = "Connect"
DEFAULT_MAX_MESSAGE_BYTES = 4 << 30

_OPTIONS = (
    # A frame is small whatever its message; gRPC refuses a larger one before it buffers it.
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", -1),
    # A machine that vanished without a word is noticed after some 30 s, also while nothing is sent:
    # there is a ping every 10 s, and gRPC has Linux give up what goes unacknowledged for 20 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A process that hangs on a machine that lives is noticed by the ping it does not answer. On a
    # slow link that answer queues behind megabytes: gRPC's 60 s would cut every such upload.
    ("grpc.http2.ping_timeout_ms", 300_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS = (
    *_OPTIONS,
    # For a connection without a handshake, or without a stream.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # What a client may send ahead of the server's reading it: 80 Mbit/s with 100 ms there and
    # back. Left to itself gRPC lets every fast uploader fill some 16 MB of the server's memory.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.max_concurrent_streams", 1),  # of a connection: their number limits all streams
    ("grpc.so_reuseport", 0),  # else a second server would share the port in silence
)
CHANNEL_OPTIONS = (
    *_OPTIONS,
    # Each attempt to connect is its own: no back-off inherited from the one before.
    ("grpc.use_local_subchannel_pool", 1),
)


def warn_of_plaintext(where: str) -> None:
    """Say that a link is not secret, to those who read logs."""
    security.warning("plaintext %s: anyone on the path can read and change what is sent", where)


def check_address(server: str) -> None:
    """Raise ConfigError unless ``server`` is ``host:port``."""
    if not server.rpartition(":")[2].isdecimal():
        raise ConfigError(f"a server is host:port, got {server!r}")


def open_channel(server: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Return a channel to ``host:port``; without credentials it is plain text."""
    if credentials is None:
        return grpc.insecure_channel(server, CHANNEL_OPTIONS)
    return grpc.secure_channel(server, credentials, CHANNEL_OPTIONS)


def explain(err: grpc.RpcError) -> str:
    """Return what gRPC knows of a failure: its status, and the last of the errors it names."""
    details = (err.details() or "").strip().partition("\n")[0]
    # ... last error: UNKNOWN: ipv4:127.0.0.1:8080: Failed to connect to remote host: Connection ...
    last = re.sub(r".*; last error: \w+: (ipv[46]:\S+: )?", "", details)
    reason = one_line(last.removeprefix("Failed to connect to remote host: "))
    return f"{err.code().name}: {reason}"
