"""Which of the known bearer tokens a caller shows. Holds hashes only."""

import hmac
from collections.abc import Iterable
from typing import Generic, TypeVar

from chairlift.runtime.token_hash import digest_of_token

_T = TypeVar("_T")
_BUCKET_BYTES = 4
MAX_TOKEN_CHARS = 512


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
        digest = digest_of_token(token)
        found: _T | None = None
        for known, owner in self._buckets.get(digest[:_BUCKET_BYTES], ()):
            if hmac.compare_digest(known, digest):
                found = owner
        return found
