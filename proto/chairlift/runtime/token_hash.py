"""How bearer tokens are made and hashed: the one definition for the server that checks and the command that makes them.

A token is random and long, so that a plain hash is enough to keep it from whoever reads the file: there is nothing to
guess. What a human has made up does not belong there.
"""

import hashlib
import secrets

_PREFIX = "sha256:"
_TOKEN_BYTES = 32
MIN_TOKEN_CHARS = 24
"""Shorter ones could be guessed from their hash."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}\Z"
"""Of a token, and of a tenant."""


def new_token() -> str:
    """A random token of 256 bits."""
    return f"cl_{secrets.token_urlsafe(_TOKEN_BYTES)}"


def hash_token(token: str) -> str:
    """How a token stands in the file."""
    return _PREFIX + digest_of_token(token).hex()


def digest_of_token(token: str) -> bytes:
    """32 bytes that tell the token."""
    return hashlib.sha256(token.encode()).digest()


def digest_of_hash(text: str) -> bytes:
    """The 32 bytes of ``sha256:HEX``. Raises ValueError."""
    digest = bytes.fromhex(text.removeprefix(_PREFIX)) if text.startswith(_PREFIX) else b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"expected {_PREFIX} and 64 hexadecimal digits, as `chairlift token hash` prints them")
    return digest
