"""Where the hashes of a request's blocks come from: its tokens, or a recording of what they were.

A recording without token values can be replayed all the same, since all that the core ever does with the tokens of a
block is compare its hash.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple, Protocol

from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core.prefix import HASH_BYTES, TOKEN_BYTES, PrefixHasher
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Sequence

PROMPT = -1
"""Stands for a choice in the key of a prompt's own chain."""


class HashKey(NamedTuple):
    """Names a hash: of a request's prompt blocks (all in one), or of one block of a choice beyond them."""

    number: int
    choice: int
    block: int


LoggedHash = tuple[int, int, int, bytes]
"""The fields of a HashKey, and the hash; with the choice of a tail, the hashes of that block and those behind it."""


def known_hashes(log: Iterable[LoggedHash]) -> Iterator[tuple[HashKey, bytes]]:
    """What a log says, a key each."""
    for number, choice, block, value in log:
        if choice == PROMPT:
            yield HashKey(number, choice, block), value
            continue
        for at in range(0, len(value), HASH_BYTES):
            yield HashKey(number, choice, block + at // HASH_BYTES), value[at : at + HASH_BYTES]


class HashSource(Protocol):
    """Gives hashes for one block size."""

    block_size: int

    def root(self, tenant: str | None, salt: str) -> bytes:
        """Parent of a request's first block; see PrefixHasher."""

    def prompt(self, request: Request) -> bytes:
        """Hashes of the prompt's full blocks, HASH_BYTES each."""

    def tail(self, sequence: Sequence, first: int, count: int) -> bytes:
        """Hashes of the next `count` full blocks beyond the prompt's, HASH_BYTES each, all their tokens settled.

        `first` is the first one's index in the sequence's table.
        """


class TokenHashes:
    """Hashes of the tokens themselves."""

    def __init__(self, key: bytes, block_size: int) -> None:
        self.block_size = block_size
        self._hasher = PrefixHasher(key, block_size)
        self.root = self._hasher.root

    def prompt(self, request: Request) -> bytes:
        """See HashSource."""
        return self._hasher.extend(request.prefix_root, request.prompt)

    def tail(self, sequence: Sequence, first: int, count: int) -> bytes:
        """See HashSource.

        ::

            prompt  |----|----|--
            outputs             --|----|--
            index     0    1    2    3      block 2 is half prompt, half output
        """
        request, size = sequence.request, self.block_size
        start = first * size - request.prompt_len
        tokens = pack_u32(sequence.outputs[max(start, 0) : start + count * size])
        if start < 0:
            tokens = request.prompt[start * TOKEN_BYTES :] + tokens
        parent = sequence.tail_hashes[-HASH_BYTES:] or request.prompt_hashes[-HASH_BYTES:] or request.prefix_root
        return self._hasher.extend(parent, tokens)


class LoggedHashes(TokenHashes):
    """The same, and remembers what it gave until it is asked for that."""

    def __init__(self, key: bytes, block_size: int) -> None:
        super().__init__(key, block_size)
        self._log: list[LoggedHash] = []

    def prompt(self, request: Request) -> bytes:
        """See HashSource."""
        chain = super().prompt(request)
        self._log.append((request.number, PROMPT, 0, chain))
        return chain

    def tail(self, sequence: Sequence, first: int, count: int) -> bytes:
        """See HashSource."""
        chain = super().tail(sequence, first, count)
        self._log.append((sequence.request.number, sequence.choice, first, chain))
        return chain

    def take_log(self) -> list[LoggedHash]:
        """What was given since the last call."""
        log, self._log = self._log, []
        return log


class RecordedHashes:
    """Hashes from a recording. One that it lacks (the run took another course) is like no other."""

    def __init__(self, known: dict[HashKey, bytes], block_size: int) -> None:
        self.block_size = block_size
        self._known = known

    def root(self, tenant: str | None, salt: str) -> bytes:
        """Nothing is chained here."""
        return b""

    def prompt(self, request: Request) -> bytes:
        """See HashSource."""
        known = self._known.get(HashKey(request.number, PROMPT, 0))
        if known is not None:
            return known
        blocks = range(request.prompt_len // self.block_size)
        return b"".join(_unlike_any(HashKey(request.number, PROMPT, block)) for block in blocks)

    def tail(self, sequence: Sequence, first: int, count: int) -> bytes:
        """See HashSource."""
        number, choice = sequence.request.number, sequence.choice
        keys = [HashKey(number, choice, block) for block in range(first, first + count)]
        return b"".join([self._known.get(key) or _unlike_any(key) for key in keys])


def _unlike_any(key: HashKey) -> bytes:
    return blake2b(repr(key).encode(), digest_size=HASH_BYTES, person=b"unlike-any").digest()
