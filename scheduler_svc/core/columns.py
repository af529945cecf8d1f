"""Tokens of decoding sequences as columns: what is confirmed, and what each gateway is sent of it.

A result is one column of ids; nothing is done a row for a step in which nothing happens to that row. A sequence's
tokens are read out of the last columns when it needs them (`Confirmed.settle`): at a block border, at its end, when
somebody attaches. A gateway's messages are cut from the column by a fixed selection that changes only when a sequence
joins or leaves. Owns nothing of planning, blocks or requests' lives.
"""

from array import array
from collections.abc import Callable
from operator import itemgetter

from chairlift.ipc.tokens import pack_u32, pack_u64
from scheduler_svc.core.sequence import Sequence


class Offsets:
    """u32 output offsets that all advance by one a step.

    The column is kept as one long integer with a lane of 32 bits an entry: adding one to every lane is then a single
    addition, some fifty times cheaper than a loop. Lanes cannot spill over: an offset stays far below 2**32.
    """

    def __init__(self) -> None:
        self._items: array[int] | None = array("I")
        self._packed = 0
        self._ones = 0
        self._num_bytes = 0

    def items(self) -> "array[int]":
        """The offsets, to be changed in place."""
        if self._items is None:
            self._items = array("I")
            self._items.frombytes(self._packed.to_bytes(self._num_bytes, "little"))
        return self._items

    def take(self) -> bytes:
        """The packed column as it is; afterwards every offset is one more."""
        if self._items is not None:
            packed = pack_u32(self._items)
            self._num_bytes = len(packed)
            self._packed = int.from_bytes(packed, "little")
            self._ones = int.from_bytes(b"\x01\x00\x00\x00" * len(self._items), "little")
            self._items = None
        else:
            packed = self._packed.to_bytes(self._num_bytes, "little")
        self._packed += self._ones
        return packed


class GatewayColumn:
    """The decoding sequences whose output goes to one gateway. Removal moves the last entry into the gap."""

    def __init__(self) -> None:
        self._members: list[Sequence] = []
        self._positions: list[int] = []
        self._handles: array[int] = array("Q")
        self._offsets = Offsets()
        self._packed_handles = b""
        self._select: Callable[[array[int]], tuple[int, ...]] | None = None
        self._is_leading = False
        self._is_stale = True

    def __len__(self) -> int:
        return len(self._members)

    def add(self, sequence: Sequence, position: int, handle: int, offset: int) -> None:
        """Its next token, at `position` of the column, is the output at `offset`."""
        sequence.column_index = len(self._members)
        self._members.append(sequence)
        self._positions.append(position)
        self._handles.append(handle)
        self._offsets.items().append(offset)
        self._is_stale = True

    def remove(self, sequence: Sequence) -> None:
        """It sends no more."""
        index = sequence.column_index
        assert index is not None
        assert self._members[index] is sequence
        offsets = self._offsets.items()
        last, position, handle, offset = self._members.pop(), self._positions.pop(), self._handles.pop(), offsets.pop()
        if last is not sequence:
            self._members[index], self._positions[index] = last, position
            self._handles[index], offsets[index] = handle, offset
            last.column_index = index
        sequence.column_index = None
        self._is_stale = True

    def reposition(self, sequence: Sequence, position: int) -> None:
        """Its place in the column is another from now on."""
        assert sequence.column_index is not None
        self._positions[sequence.column_index] = position
        self._is_stale = True

    def take(self, column: "array[int]", sampled: bytes) -> tuple[bytes, bytes, bytes]:
        """Packed handles, offsets and tokens of its members for one result; their offsets advance.

        `sampled` is the packed form of `column`, which begins with the decode rows.
        """
        if self._is_stale:
            self._refresh()
        if self._is_leading:
            tokens = sampled[: 4 * len(self._positions)]
        elif self._select is not None:
            tokens = pack_u32(self._select(column))
        else:
            tokens = pack_u32([column[position] for position in self._positions])
        return self._packed_handles, self._offsets.take(), tokens

    def forget_selection(self) -> None:
        """How entries are picked out of a column is found anew with the next result."""
        self._select = None
        self._is_stale = True

    def _refresh(self) -> None:
        self._packed_handles = pack_u64(self._handles)
        self._is_leading = self._positions == list(range(len(self._positions)))
        many = not self._is_leading and len(self._positions) > 1
        self._select = itemgetter(*self._positions) if many else None
        self._is_stale = False

    def check(self, handle_of: Callable[[Sequence], int], offset_of: Callable[[Sequence], int]) -> None:
        """Asserts that every member stands where it says and sends under the right handle and offset."""
        offsets = self._offsets.items()
        for index, sequence in enumerate(self._members):
            assert sequence.column_index == index
            assert self._positions[index] == sequence.confirmed_at
            assert self._handles[index] == handle_of(sequence)
            assert offsets[index] == offset_of(sequence)


class Confirmed:
    """The decode column of the next result, and the last results' columns."""

    def __init__(self) -> None:
        self.step = 0
        """The last step completed."""
        self.members: list[Sequence] = []
        """The layout of step ``step + 1``'s decode rows."""
        self.num_ghosts = 0
        """Members that have ended: rows computed for them are discarded."""
        self._columns: list[array[int]] = []
        self._first = 1
        """The step of ``_columns[0]``."""

    def join(self, sequence: Sequence) -> None:
        """It is in the next column, at the end."""
        sequence.confirmed_at = len(self.members)
        sequence.settled_step = self.step + 1
        self.members.append(sequence)
        self.num_ghosts += sequence.is_ended

    def leave(self, sequence: Sequence) -> Sequence | None:
        """It is not in the next column; its tokens are settled. Returns the sequence that moved into its place."""
        self.settle(sequence)
        position = sequence.confirmed_at
        assert position is not None
        assert self.members[position] is sequence
        sequence.confirmed_at = None
        self.num_ghosts -= sequence.is_ended
        last = self.members.pop()
        if last is sequence:
            return None
        self.settle(last)
        last.confirmed_at = position
        self.members[position] = last
        return last

    def settle(self, sequence: Sequence) -> None:
        """Reads its tokens out of the columns into `outputs`. An ended one has what it will ever have."""
        position = sequence.confirmed_at
        settled = sequence.settled_step
        if position is None or settled > self.step or sequence.is_ended:
            return
        assert settled >= self._first, "columns were dropped that it had not read"
        sequence.outputs.extend([column[position] for column in self._columns[settled - self._first :]])
        sequence.num_rode += self.step + 1 - settled
        sequence.settled_step = self.step + 1

    def add(self, column: "array[int]", keep: int) -> None:
        """The next step's result; columns older than `keep` steps are settled by everyone, and dropped."""
        self.step += 1
        self._columns.append(column)
        if len(self._columns) > 2 * keep:
            del self._columns[:-keep]
            self._first = self.step - keep + 1

    def clear(self, step: int) -> list[Sequence]:
        """Settles all and empties the column; the next result will be that of ``step + 1``."""
        members = list(self.members)
        for sequence in members:
            self.settle(sequence)
            sequence.confirmed_at = None
        self.members.clear()
        self.num_ghosts = 0
        self._columns.clear()
        self.step = step
        self._first = step + 1
        return members

    def num_pending(self, sequence: Sequence) -> int:
        """Confirmed tokens of it that are not settled."""
        if sequence.confirmed_at is None or sequence.is_ended:
            return 0
        return self.step + 1 - sequence.settled_step
