"""The batch as the next plan sees it: who sits in which row, who decodes, and which step needs what.

Owns rows, the decode column and the wheels of coming block borders and ends. Knows no queue, pool or gateway.

Every sequence in the decode column advances by one token with every plan, so the step of its next block border, and
of its end by length, are known in advance: they wait in `borders` and `endings` under that step's number, and a plan
looks at nobody else.
"""

import heapq
from array import array
from collections import Counter
from collections.abc import Sequence as Sequences

from chairlift.ipc.tokens import pack_u32
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.steps import Transition


class Batch:
    """Rows 0 .. num_rows - 1."""

    def __init__(self, num_rows: int, planned: int = 0) -> None:
        self.num_rows = num_rows
        self.planned = planned
        """The last step planned."""
        self.rows: dict[int, Sequence] = {}
        """Taken seats, in boarding order."""
        self.num_changes = 0
        """Times that a seat was taken or given back."""
        self.catching_up: dict[Sequence, None] = {}
        """Seated sequences that are not in the decode column, in boarding order: they have a gap to close."""
        self.borders: dict[int, list[Sequence]] = {}
        self.endings: dict[int, list[Sequence]] = {}
        self.num_column_tokens = 0
        """Tokens scheduled of all sequences in the decode column."""
        self._free_rows = list(range(num_rows))
        self._left: array[int] = array("I")
        self._column: list[Sequence] = []
        self._column_rows: array[int] = array("I")
        self._packed_rows = b""
        self._leaving: list[Sequence] = []
        self._lengths_at: tuple[int, int] | None = None
        """The step, and the changes of seats until then, for which `_lengths_left` holds."""
        self._lengths_left: list[tuple[int, int]] = []
        self.joining: dict[Sequence, None] = {}
        """Sequences whose last chunk is planned: they decode from the next plan on."""

    # ---- seats ----

    def lengths_left(self) -> list[tuple[int, int]]:
        """Steps until riders reach their lengths if nothing comes between, ascending, and how many do so then."""
        at = (self.planned, self.num_changes)
        if self._lengths_at != at:
            left = Counter(max(one.length_left(self.planned), 1) for one in self.rows.values())
            self._lengths_at, self._lengths_left = at, sorted(left.items())
        return self._lengths_left

    @property
    def num_free_rows(self) -> int:
        """Rows that nobody holds."""
        return len(self._free_rows)

    def seat(self, sequence: Sequence) -> None:
        """Gives it the lowest free row; it has a gap to close."""
        self.num_changes += 1
        row = heapq.heappop(self._free_rows)
        sequence.row = row
        self.rows[row] = sequence
        self.catching_up[sequence] = None

    def unseat(self, sequence: Sequence) -> None:
        """Takes its row away, and the sequence out of all that is planned from now on."""
        self.num_changes += 1
        row = sequence.row
        assert row is not None
        self._stop_decoding(sequence)
        self.catching_up.pop(sequence, None)
        del self.rows[row]
        sequence.row = None
        heapq.heappush(self._free_rows, row)
        self._left.append(row)

    def take_left(self) -> bytes:
        """Packed rows that left since the last plan."""
        if not self._left:
            return b""
        packed = pack_u32(self._left)
        self._left = array("I")
        return packed

    # ---- the decode column ----

    @property
    def num_decodes(self) -> int:
        """Rows in the decode column of the plan that is being made."""
        return len(self._column) - len(self._leaving) + len(self.joining)

    def decode_from_next(self, sequence: Sequence) -> None:
        """Its gap is planned to be closed: the next plan has it in the column."""
        self.catching_up.pop(sequence, None)
        self.joining[sequence] = None

    def _stop_decoding(self, sequence: Sequence) -> None:
        self.joining.pop(sequence, None)
        if sequence.base is not None:
            sequence.scheduled = sequence.base + self.planned
            sequence.last_step = sequence.token_step = self.planned
            sequence.base = None
            self.num_column_tokens -= sequence.scheduled
            self._leaving.append(sequence)

    @property
    def column(self) -> Sequences[Sequence]:
        """Who decodes in the last plan, in the order of its rows."""
        return self._column

    def num_scheduled(self, sequence: Sequence) -> int:
        """Tokens of it that plans cover."""
        return sequence.scheduled if sequence.base is None else sequence.base + self.planned

    def is_held(self, sequence: Sequence, confirmed: int) -> bool:
        """Whether a plan in flight (a step after `confirmed`) computes it."""
        return sequence.base is not None or sequence.last_step > confirmed

    def border_at(self, sequence: Sequence, step: int) -> None:
        """It writes to a new block in this step."""
        sequence.border_step = step
        waiting = self.borders.get(step)
        if waiting is None:
            self.borders[step] = [sequence]
        else:
            waiting.append(sequence)

    def end_at(self, sequence: Sequence, step: int) -> None:
        """Its last token is sampled in the step before this one."""
        sequence.ending_step = step
        self.endings.setdefault(step, []).append(sequence)

    def ends_at(self, step: int) -> list[Sequence]:
        """Seated sequences that are in no step from this one on."""
        due = self.endings.get(step)
        if due is None:
            return []
        return [
            sequence for sequence in dict.fromkeys(due) if sequence.ending_step == step and sequence.row is not None
        ]

    def settle_column(self) -> tuple[bytes, Transition | None]:
        """The packed rows of the next plan's decode column, and its difference to the last one."""
        if not self._leaving and not self.joining:
            return self._packed_rows, None
        transition = Transition(self._leaving, list(self.joining))
        for sequence in self._leaving:
            self._drop(sequence)
        for sequence in self.joining:
            sequence.base = sequence.scheduled - self.planned
            self.num_column_tokens += sequence.scheduled
            sequence.planned_at = len(self._column)
            assert sequence.row is not None
            self._column.append(sequence)
            self._column_rows.append(sequence.row)
        self._leaving = []
        self.joining = {}
        self._packed_rows = pack_u32(self._column_rows)
        return self._packed_rows, transition

    def _drop(self, sequence: Sequence) -> None:
        position = sequence.planned_at
        assert position is not None
        last, row = self._column.pop(), self._column_rows.pop()
        if last is not sequence:
            self._column[position], self._column_rows[position] = last, row
            last.planned_at = position
        sequence.planned_at = None

    def plan_sealed(self, step: int) -> None:
        """The step is planned: every decoding sequence is one token further."""
        self.planned = step
        self.num_column_tokens += len(self._column)

    def void(self) -> None:
        """What was planned is void: everyone seated has a gap to close, from whatever was computed."""
        for sequence in self._column:
            sequence.base = sequence.planned_at = None
        for sequence in self.rows.values():
            sequence.border_step = sequence.ending_step = 0
        self._column.clear()
        self.num_column_tokens = 0
        self._column_rows = array("I")
        self._packed_rows = b""
        self._leaving = []
        self.joining = {}
        self.borders.clear()
        self.endings.clear()
        self._left = array("I")
        self.catching_up = dict.fromkeys(self.rows.values())
