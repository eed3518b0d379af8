"""TLS credentials from PEM files, checked before gRPC sees them, and whether both ends speak it."""

from __future__ import annotations

import datetime
import socket
import ssl
from typing import Final

import grpc

from fedsz.errors import ConfigError, LinkError
from fedsz.transport.proofs import Token, load_certificate, read_private
from fedsz.whole_files import Pathish, read_bytes

_ANSWER_SECONDS: Final = 5.0
# gRPC says of a missing certificate only that the socket was closed.
CERTIFICATE_HINT: Final = "; a server with --tls-ca takes only certificates that this has signed"
_ONE_END: Final = (  # that speaks TLS: the client, or the server
    "the server speaks plaintext and this client TLS: start the server with --tls-cert and"
    " --tls-key, or this client with --insecure",
    "the server speaks TLS and this client plaintext: start this client with --tls-ca and"
    " without --insecure, or the server with --insecure",
)


def server_credentials(
    cert: Pathish, key: Pathish, ca: Pathish | None = None
) -> grpc.ServerCredentials:
    """Return what `GrpcGrid` needs to speak TLS.

    Args:
        cert: PEM file with the server's certificate, then any intermediate ones.
        key: PEM file with its private key, not encrypted, which nobody else may read.
        ca: PEM file with the certificates that clients must be signed by; None admits everybody.

    Raises:
        ConfigError: a file is missing, or not what it should be, or the certificate has expired.
    """
    pair = _pair(cert, key)
    if ca is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials([pair], _authority(ca), require_client_auth=True)


def channel_credentials(
    ca: Pathish | None = None,
    cert: Pathish | None = None,
    key: Pathish | None = None,
    *,
    token: Pathish | None = None,
) -> grpc.ChannelCredentials:
    """Return what `run_client` needs to speak TLS.

    Args:
        ca: PEM file with the certificates that the server must be signed by; None means those
            that gRPC ships, for servers with a public certificate.
        cert: PEM file with the client's own certificate, for servers that ask for one.
        key: PEM file with its private key, not encrypted, which nobody else may read.
        token: file with the client's token, for servers that ask for one. It goes with each
            connection; gRPC sends it over TLS only.

    Raises:
        ConfigError: a file is missing, or not what it should be; ``cert`` and ``key`` are not a
            pair; or the certificate has expired.
    """
    authority = None if ca is None else _authority(ca)
    if (cert is None) != (key is None):
        raise ConfigError("a client certificate needs both its cert and its key")
    pair = (None, None) if cert is None or key is None else _pair(cert, key)
    credentials = grpc.ssl_channel_credentials(authority, *pair)
    if token is None:
        return credentials
    bearer = grpc.access_token_call_credentials(Token.read(token).text())
    return grpc.composite_channel_credentials(credentials, bearer)


def require_same_security(server: str, *, secure: bool) -> None:
    """Greet ``host:port`` in TLS, to see whether both ends speak it; gRPC does not say so.

    Args:
        server: that gRPC has failed to reach.
        secure: whether the client speaks TLS.

    Raises:
        LinkError: one end speaks TLS and the other plain text; says what to do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Any server will do: nothing is sent to it.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = server.rpartition(":")
    speaks_tls = True
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS)
        with context.wrap_socket(plain):
            pass
    except ssl.SSLEOFError:
        return
    except ssl.SSLError as err:  # it refuses by an alert, or its answer is none of TLS
        speaks_tls = "ALERT" in str(err.reason)
    except (OSError, OverflowError, UnicodeError):  # no such port, no such name
        return
    if speaks_tls != secure:
        raise LinkError(f"no link to {server}: {_ONE_END[speaks_tls]}")


def _pair(cert: Pathish, key: Pathish) -> tuple[bytes, bytes]:
    """Return the bytes of a key and of its certificate chain; gRPC would not say what is wrong."""
    chain_bytes, key_bytes = read_bytes(cert), read_private(key)
    if b"ENCRYPTED" in key_bytes:
        raise ConfigError(f"{key}: the private key is encrypted; gRPC cannot ask for a passphrase")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as err:
        raise ConfigError(f"{cert} and {key} are no certificate and its key: {err}") from err
    # The other end would say no more than that the link is broken.
    certificate, now = load_certificate(cert), datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigError(f"{cert} expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if now < certificate.not_valid_before_utc:
        raise ConfigError(f"{cert} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on")
    return key_bytes, chain_bytes


def _authority(ca: Pathish) -> bytes:
    """Return the bytes of a file of CA certificates."""
    raw = read_bytes(ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except ssl.SSLError as err:
        raise ConfigError(f"{ca} holds no certificates: {err}") from err
    return raw
