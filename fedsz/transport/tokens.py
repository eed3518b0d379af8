"""Tokens: what a client without a certificate proves its id with.

A token is a serial number and 256 random bits. Its client shows it on every connection, over TLS
alone. The server keeps a salted hash. That hash is a fast one: nobody can guess 256 bits, so there
is nothing that a slow one would protect.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from fedsz.errors import ConfigError
from fedsz.transport.private_files import parse_lines, read_private, reads
from fedsz.whole_files import Pathish

_SERIAL_BYTES, _SECRET_BYTES, _SALT_BYTES = 8, 32, 16


@dataclass(frozen=True)
class Token:
    """The secret of one client."""

    client_id: str
    serial: int  # tells the tokens of a server apart, and is no secret
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls, client_id: str) -> Self:
        """Return a token of random bits."""
        serial = int.from_bytes(secrets.token_bytes(_SERIAL_BYTES))
        return cls(client_id, serial, secrets.token_bytes(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the token that `text` has written.

        Raises:
            ConfigError: it is none; the message does not repeat it.
        """
        name, serial, secret = [*text.strip().split(":"), "", ""][:3]
        try:
            token = cls(unquote(name), int(serial, 16), bytes.fromhex(secret))
        except ValueError:
            raise ConfigError("not a token, which is CLIENT:SERIAL:SECRET") from None
        if text.strip() != token.text() or len(token.secret) != _SECRET_BYTES:
            raise ConfigError("not a token, which is CLIENT:SERIAL:SECRET")
        return token

    @classmethod
    def read(cls, path: Pathish) -> Self:
        """Return the token in a file.

        Raises:
            ConfigError: the file cannot be read, others can read it, or it holds no token.
        """
        text = read_private(path).decode(errors="replace")
        try:
            return cls.parse(text)
        except ConfigError as err:
            raise ConfigError(f"{path}: {err}") from None

    def text(self) -> str:
        """Return it in the printable ASCII that files and HTTP headers take."""
        return f"{quote(self.client_id, safe='')}:{self.serial:x}:{self.secret.hex()}"


@dataclass(frozen=True)
class TokenHash:
    """What a server knows of a token."""

    client_id: str
    serial: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, token: Token) -> Self:
        """Return the hash of a token, with a salt of its own."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(token.client_id, token.serial, salt, _digest(salt, token.secret))

    def fits(self, token: Token) -> bool:
        """Return whether this is the token's hash, in a time that does not tell how nearly."""
        return hmac.compare_digest(_digest(self.salt, token.secret), self.digest)


def read_hashes(path: Path) -> dict[int, TokenHash]:
    """Return the hashes in a file, by the serial numbers of their tokens.

    Raises:
        ConfigError: it cannot be read, or has a line that is no hash.
    """
    hashes = parse_lines(path, reads(TokenHash), "no hash of a token")
    return {known.serial: known for known in hashes}


def _digest(salt: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt, secret, hashlib.sha256)
