"""TLS credentials from PEM files, checked before gRPC sees them, and whether both ends speak it."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from fedsz.errors import ConfigError

Pathish = str | os.PathLike[str]

_ANSWER_SECONDS: Final = 2.0
_HANDSHAKE, _ALERT = 22, 21  # content types of TLS records: RFC 8446, section 5.1


def server_credentials(
    cert: Pathish, key: Pathish, ca: Pathish | None = None
) -> grpc.ServerCredentials:
    """Return what `GrpcGrid` needs to speak TLS.

    Args:
        cert: PEM file with the server's certificate, then any intermediate ones.
        key: PEM file with its private key, not encrypted.
        ca: PEM file with the certificates that clients must be signed by; None admits everybody.

    Raises:
        ConfigError: a file is missing, or not what it should be.
    """
    pair = _pair(cert, key)
    if ca is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials([pair], _authority(ca), require_client_auth=True)


def channel_credentials(
    ca: Pathish | None = None, cert: Pathish | None = None, key: Pathish | None = None
) -> grpc.ChannelCredentials:
    """Return what `run_client` needs to speak TLS.

    Args:
        ca: PEM file with the certificates that the server must be signed by; None means those
            that gRPC ships, for servers with a public certificate.
        cert: PEM file with the client's own certificate, for servers that ask for one.
        key: PEM file with its private key, not encrypted.

    Raises:
        ConfigError: a file is missing, not what it should be, or ``cert`` and ``key`` not a pair.
    """
    authority = None if ca is None else _authority(ca)
    if cert is None and key is None:
        return grpc.ssl_channel_credentials(authority)
    if cert is None or key is None:
        raise ConfigError("a client certificate needs both its cert and its key")
    chain_key, chain = _pair(cert, key)
    return grpc.ssl_channel_credentials(authority, chain_key, chain)


def mismatch(server: str, *, secure: bool) -> str:
    """Return what is wrong, and what to do, if one end speaks TLS and the other plain text.

    gRPC does not say so: it tells of a wrong version, or of a closed socket. So this greets the
    server in TLS, and looks whether the answer is.

    Args:
        server: ``host:port``.
        secure: whether the client speaks TLS.

    Returns:
        One line; "" if both speak the same, or if the server does not answer.
    """
    theirs = _speaks_tls(server)
    if theirs is None or theirs == secure:
        return ""
    if secure:
        return (
            "the server speaks plaintext and this client TLS: start the server with --tls-cert and"
            " --tls-key, or this client with --insecure"
        )
    return (
        "the server speaks TLS and this client plaintext: start this client with --tls-ca and"
        " without --insecure, or the server with --insecure"
    )


def _speaks_tls(server: str) -> bool | None:
    """Return whether a server answers TLS's greeting in TLS; None if it does not answer."""
    host, _, port = server.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    greeting = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):  # the greeting is written, and wants an answer
        context.wrap_bio(ssl.MemoryBIO(), greeting).do_handshake()
    try:
        address = host.strip("[]"), int(port)
        with socket.create_connection(address, _ANSWER_SECONDS) as connection:
            connection.sendall(greeting.read())
            answer = connection.recv(1)
    except (OSError, OverflowError, UnicodeError):  # no such port, no such name
        return None
    return answer[0] in (_HANDSHAKE, _ALERT) if answer else None


def _pair(cert: Pathish, key: Pathish) -> tuple[bytes, bytes]:
    """Return the bytes of a key and of its certificate chain; gRPC would not say what is wrong."""
    chain_bytes, key_bytes = _read(cert), _read(key)
    if b"ENCRYPTED" in key_bytes:
        raise ConfigError(f"{key}: the private key is encrypted; gRPC cannot ask for a passphrase")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as err:
        raise ConfigError(f"{cert} and {key} are no certificate and its key: {err}") from err
    return key_bytes, chain_bytes


def _authority(ca: Pathish) -> bytes:
    """Return the bytes of a file of CA certificates."""
    raw = _read(ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except ssl.SSLError as err:
        raise ConfigError(f"{ca} holds no certificates: {err}") from err
    return raw


def _read(path: Pathish) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err
