"""TLS credentials from PEM files, checked before gRPC sees them, and whether both ends speak it."""

from __future__ import annotations

import datetime
import socket
import ssl
from enum import Enum
from typing import Final

import grpc
from cryptography import x509

from fedsz.errors import ConfigError
from fedsz.transport.private_files import Pathish, read_file, read_private
from fedsz.transport.tokens import Token

_ANSWER_SECONDS: Final = 5.0


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


def load_certificate(path: Pathish) -> x509.Certificate:
    """Return the first certificate in a PEM file.

    Raises:
        ConfigError: there is none.
    """
    pem = read_file(path)
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as err:
        raise ConfigError(f"{path} holds no certificate: {err}") from err


class Spoken(Enum):
    """What a server speaks, as far as it shows by a greeting."""

    TLS = "TLS"
    TLS_WITH_CERTIFICATE = "TLS, with clients that have a certificate"
    PLAINTEXT = "plaintext"


def spoken_by(server: str) -> Spoken | None:
    """Greet ``host:port`` in TLS, without a certificate, and return what it speaks.

    gRPC does not say so: it tells of a wrong version, or of a closed socket. By TLS 1.3 a client
    takes part in the whole handshake before the server looks at its certificate, and hangs up.

    Returns:
        None if it does not answer.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # that takes any server, to look at it
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = server.rpartition(":")
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS)
        link = context.wrap_socket(plain)
    except ssl.SSLEOFError:
        return None
    except ssl.SSLError as err:  # it refuses by an alert, or its answer is none of TLS
        return Spoken.TLS if "ALERT" in str(err.reason) else Spoken.PLAINTEXT
    except (OSError, OverflowError, UnicodeError):  # no such port, no such name
        return None
    with link:
        try:
            return Spoken.TLS if link.recv(1) else Spoken.TLS_WITH_CERTIFICATE
        except TimeoutError:
            return Spoken.TLS
        except OSError:  # it says why, or hangs up before it has read what the handshake sent
            return Spoken.TLS_WITH_CERTIFICATE


def mismatch(spoken: Spoken | None, *, secure: bool) -> str:
    """Return what is wrong, and what to do, if one end speaks TLS and the other plain text.

    Args:
        spoken: by the server.
        secure: whether the client speaks TLS.

    Returns:
        One line; "" if both speak the same, or if the server does not answer.
    """
    if spoken is None or secure == (spoken is not Spoken.PLAINTEXT):
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


def _pair(cert: Pathish, key: Pathish) -> tuple[bytes, bytes]:
    """Return the bytes of a key and of its certificate chain; gRPC would not say what is wrong."""
    chain_bytes, key_bytes = read_file(cert), read_private(key)
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
    raw = read_file(ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except ssl.SSLError as err:
        raise ConfigError(f"{ca} holds no certificates: {err}") from err
    return raw
