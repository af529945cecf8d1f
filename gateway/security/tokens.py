"""Bearer tokens: how they are hashed, and how the one that a caller shows is found among those that are known.

A token is random and long, so that a plain hash is enough to keep it from whoever reads the file: there is nothing to
guess. What a human has made up does not belong here.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Generic, TypeVar

_T = TypeVar("_T")
_PREFIX = "sha256:"
_BUCKET_BYTES = 4
MAX_TOKEN_CHARS = 512


def hash_token(token: str) -> str:
    """How a token stands in the file."""
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def digest_of_hash(text: str) -> bytes:
    """The 32 bytes of ``sha256:HEX``. Raises ValueError."""
    digest = bytes.fromhex(text.removeprefix(_PREFIX)) if text.startswith(_PREFIX) else b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"expected {_PREFIX} and 64 hexadecimal digits, as `chairlift token hash` prints them")
    return digest


class HashedTokens(Generic[_T]):
    """What each token stands for, by hash alone. Immutable."""

    def __init__(self, entries: Iterable[tuple[bytes, _T]]) -> None:
        """`entries` are digests with what they stand for."""
        self._buckets: dict[bytes, list[tuple[bytes, _T]]] = {}
        for digest, owner in entries:
            self._buckets.setdefault(digest[:_BUCKET_BYTES], []).append((digest, owner))

    def find(self, token: str) -> _T | None:
        """Whose token it is. Which bytes of it are right has no influence on the time: a hash is looked up and compared
        in constant time, never the token.
        """
        if len(token) > MAX_TOKEN_CHARS:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        found: _T | None = None
        for known, owner in self._buckets.get(digest[:_BUCKET_BYTES], ()):
            if hmac.compare_digest(known, digest):
                found = owner
        return found
