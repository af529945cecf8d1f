"""KV blocks: who uses each, which are free, and which free ones still hold content worth finding again.

Owns reference counts, the free list in least-recently-used order and the prefix index. Knows no sequence, request or
time. A block is in exactly one of three places: *used* (count > 0), *cached* (count 0, content indexed) or *blank*.
Every operation is O(1) a block. The design is vLLM's (Kwon et al., SOSP 2023), with two free lists instead of one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable


class OutOfBlocks(Exception):
    """More blocks were taken than `num_obtainable`: the caller did not ask first."""


class BlockPool:
    """Blocks 0 .. num_blocks - 1, all blank at first."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._counts = array("I", bytes(4 * num_blocks))
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    @property
    def num_blank(self) -> int:
        """Blocks that nobody uses and whose content is worthless."""
        return len(self._blank)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody uses, kept for prefix hits."""
        return len(self._cached)

    @property
    def num_obtainable(self) -> int:
        """Blocks that `take` can give: blank ones and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks with at least one user."""
        return self.num_blocks - len(self._blank) - len(self._cached)

    def take(self) -> int:
        """One block for one user; the least recently used cached one is forgotten when none is blank."""
        block = self.try_take()
        if block is None:
            raise OutOfBlocks(f"none of {self.num_blocks} blocks is free")
        return block

    def try_take(self) -> int | None:
        """The same; None when there is none."""
        if self._blank:
            block = self._blank.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            del self._index[self._hashes.pop(block)]
        else:
            return None
        self._counts[block] = 1
        return block

    def take_many(self, count: int) -> "array[int]":
        """`count` blocks at once."""
        return array("I", [self.take() for _ in range(count)])

    def share(self, block: int) -> None:
        """One more user of a used or cached block."""
        if self._counts[block] == 0:
            del self._cached[block]
        self._counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One user less of each, in this order: give a table's tail first, so that its head is forgotten last."""
        counts = self._counts
        hashes = self._hashes
        for block in blocks:
            left = counts[block] - 1
            counts[block] = left
            if left == 0:
                if block in hashes:
                    self._cached[block] = None
                else:
                    self._blank.append(block)

    def find(self, content: bytes) -> int | None:
        """The block with this content hash, or None."""
        return self._index.get(content)

    def is_cached(self, block: int) -> bool:
        """Whether nobody uses the block: sharing it takes one from `num_obtainable`."""
        return self._counts[block] == 0

    def index(self, block: int, content: bytes) -> bool:
        """Makes a used block findable; False when that content is indexed already, or the block is."""
        if content in self._index or block in self._hashes:
            return False
        self._index[content] = block
        self._hashes[block] = content
        return True

    def unindex(self, block: int) -> None:
        """Forgets a block's content: what was to fill it failed. No effect on a block that is not indexed."""
        content = self._hashes.pop(block, None)
        if content is None:
            return
        del self._index[content]
        if self._counts[block] == 0:
            del self._cached[block]
            self._blank.append(block)

    def flush(self) -> None:
        """Forgets the content of every block that nobody uses."""
        for block in self._cached:
            del self._index[self._hashes.pop(block)]
            self._blank.append(block)
        self._cached.clear()

    def count(self, block: int) -> int:
        """Users of a block."""
        return self._counts[block]

    def check(self, expected: dict[int, int]) -> None:
        """Asserts every count against `expected` (block to users, absent is 0) and that each block is in one place."""
        blank = set(self._blank)
        assert len(blank) == len(self._blank), "a block is blank twice"
        for block in range(self.num_blocks):
            users = expected.get(block, 0)
            assert self._counts[block] == users, f"block {block} counts {self._counts[block]} users, has {users}"
            places = (block in blank) + (block in self._cached) + (users > 0)
            assert places == 1, f"block {block} is in {places} places"
            assert (block in blank) <= (block not in self._hashes), f"blank block {block} is indexed"
            assert (block in self._cached) <= (block in self._hashes), f"cached block {block} is not indexed"
        assert len(self._index) == len(self._hashes), "index and hashes differ in size"
        for block, content in self._hashes.items():
            assert self._index[content] == block, f"block {block} is indexed under another content"
