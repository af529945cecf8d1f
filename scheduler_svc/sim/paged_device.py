"""A worker in plain Python that executes plans to the letter and refuses to believe them.

A KV slot's content is modelled as a hash of all tokens up to its position, so that a wrong block table, a block given
to two, a missed copy or a false prefix hit shows as soon as it is read. A sampled token is a hash of (seed, choice,
history): whatever the schedule, the same request gets the same tokens, and `expected_output` gives them without one.

Owns the rules of `chairlift.ipc.device`; knows nothing of the core.
"""

from hashlib import blake2b

from chairlift.ipc import device
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_f32, pack_u32, unpack_u32

_NO_HISTORY = b"start"


class InvalidPlan(AssertionError):
    """The plan breaks a rule of the link: a bug of the scheduler."""


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvalidPlan(rule)


def _history(before: bytes, token: int) -> bytes:
    return blake2b(before + token.to_bytes(4, "little"), digest_size=8).digest()


def _sample(history: bytes, sampling: SamplingParams, choice: int, num_outputs: int, geometry: device.Geometry) -> int:
    """About one token in 16 is an end where the request may end."""
    seed = sampling.seed.to_bytes(8, "little") + choice.to_bytes(2, "little")
    value = int.from_bytes(blake2b(history + seed, digest_size=8).digest(), "little")
    ends = geometry.eos_token_ids + sampling.stop_token_ids
    token = ends[value // 16 % len(ends)] if ends and value % 16 == 0 else value % geometry.vocab_size
    while num_outputs < sampling.min_tokens and token in ends:
        token = (token + 1) % geometry.vocab_size
    return token


def _end_of(token: int, sampling: SamplingParams, geometry: device.Geometry) -> device.EndKind | None:
    if token in geometry.eos_token_ids and not sampling.ignore_eos:
        return device.EndKind.EOS
    return device.EndKind.STOP_TOKEN if token in sampling.stop_token_ids else None


def expected_output(
    prompt: list[int], sampling: SamplingParams, choice: int, limit: int, geometry: device.Geometry
) -> list[int]:
    """The output of an undisturbed run of one choice, up to and including the token that ends it."""
    history = _NO_HISTORY
    for token in prompt:
        history = _history(history, token)
    output: list[int] = []
    while len(output) < limit:
        token = _sample(history, sampling, choice, len(output), geometry)
        output.append(token)
        if _end_of(token, sampling, geometry) is not None:
            break
        history = _history(history, token)
    return output


class _Row:
    def __init__(self, boarded: device.BoardedRow) -> None:
        self.tokens = list(unpack_u32(boarded.tokens))
        self.prompt_len = boarded.prompt_len
        self.computed = boarded.computed
        self.blocks = list(unpack_u32(boarded.blocks))
        self.choice = boarded.choice
        self.sampling = boarded.sampling
        self.histories: list[bytes] = []
        for token in self.tokens:
            self.note(token)

    def note(self, token: int) -> None:
        self.histories.append(_history(self.histories[-1] if self.histories else _NO_HISTORY, token))


class PagedDevice:
    """One life of a worker."""

    def __init__(self, geometry: device.Geometry, epoch: int) -> None:
        self.geometry = geometry
        self.epoch = epoch
        self.poison: set[int] = set()
        """Prompt tokens that make a step throw."""
        self.fail_steps = 0
        """So many of the next steps throw."""
        self.num_executed = 0
        self._rows: dict[int, _Row] = {}
        self._kv: list[list[bytes | None]] = [[None] * geometry.block_size for _ in range(geometry.num_blocks)]
        self._host: list[list[bytes | None]] = [[None] * geometry.block_size for _ in range(geometry.num_host_blocks)]
        self._expected: int | None = None
        self._refused: int | None = None

    def execute(self, plan: device.Plan) -> device.StepDone | device.StepFailed | device.NeedSnapshot | None:
        """One step; None for a plan that is dropped in silence. Raises InvalidPlan for a bug of its maker."""
        if plan.worker_epoch != self.epoch:
            return None
        if not plan.reset and plan.step != self._expected:
            return self._refuse(plan)
        self._expected, self._refused = plan.step + 1, None
        self._change_rows(plan)
        work = self._work(plan)
        if self.fail_steps > 0 or any(self._is_poisoned(row) for row, _ in work):
            self.fail_steps = max(self.fail_steps - 1, 0)
            self._expected, self._refused = None, plan.step
            return device.StepFailed(self.epoch, plan.step, "exception", "planted")
        self._copy(plan)
        self._check_writes(work)
        self.num_executed += 1
        return self._compute(plan, work)

    def _refuse(self, plan: device.Plan) -> device.NeedSnapshot | None:
        """One answer for two plans: the second was sent before the scheduler could know of the first."""
        is_second = self._refused is not None and plan.step == self._refused + 1
        self._refused = None if is_second else plan.step
        self._expected = None
        return None if is_second else device.NeedSnapshot(self.epoch, plan.step)

    def _is_poisoned(self, row: int) -> bool:
        held = self._rows[row]
        return not self.poison.isdisjoint(held.tokens[: held.prompt_len])

    def _change_rows(self, plan: device.Plan) -> None:
        if plan.reset:
            self._rows.clear()
            _require(not plan.left and not plan.appended, "a snapshot has no differences")
        for row in unpack_u32(plan.left):
            _require(row in self._rows, f"row {row} leaves and is not there")
            del self._rows[row]
        for boarded in plan.boarded:
            _require(boarded.row not in self._rows, f"row {boarded.row} boards twice")
            _require(0 <= boarded.row < self.geometry.max_num_seqs, f"row {boarded.row} does not exist")
            self._rows[boarded.row] = _Row(boarded)
            _require(boarded.computed < len(self._rows[boarded.row].tokens), "a row boards with nothing to compute")
        pairs = unpack_u32(plan.appended)
        for row, block in zip(pairs[::2], pairs[1::2], strict=True):
            _require(row in self._rows, f"row {row} gets a block and is not there")
            self._rows[row].blocks.append(block)

    def _work(self, plan: device.Plan) -> list[tuple[int, int]]:
        pairs = unpack_u32(plan.chunks)
        work = [(row, 1) for row in unpack_u32(plan.decode)]
        work += list(zip(pairs[::2], pairs[1::2], strict=True))
        rows = [row for row, _ in work]
        _require(bool(work), "the plan computes nothing")
        _require(len(set(rows)) == len(rows), "a row computes twice in a step")
        _require(sum(count for _, count in work) <= self.geometry.max_num_batched_tokens, "too many tokens in a step")
        for row, count in work:
            _require(row in self._rows, f"row {row} computes and is not there")
            held = self._rows[row]
            end = held.computed + count
            _require(count > 0 and end <= len(held.tokens), f"row {row} computes tokens that it does not know")
            covered = len(held.blocks) * self.geometry.block_size
            _require(end <= covered, f"row {row} writes up to position {end}, its table covers {covered}")
        return work

    def _copy(self, plan: device.Plan) -> None:
        """Swap-outs, then copies, then swap-ins."""
        moves = (
            (self._kv, plan.swap_out, self._host),
            (self._kv, plan.copies, self._kv),
            (self._host, plan.swap_in, self._kv),
        )
        for sources, packed, targets in moves:
            pairs = unpack_u32(packed)
            _require(len(set(pairs[1::2])) == len(pairs) // 2, "two blocks are copied to one place")
            for source, target in zip(pairs[::2], pairs[1::2], strict=True):
                _require(sources is not targets or source != target, "a block is copied onto itself")
                targets[target] = list(sources[source])

    def _check_writes(self, work: list[tuple[int, int]]) -> None:
        """A block has one writer; others hold it only to read, at the same positions, what is being written."""
        size = self.geometry.block_size
        users: dict[int, list[int]] = {}
        for row, held in self._rows.items():
            _require(len(set(held.blocks)) == len(held.blocks), f"row {row} has a block twice")
            for block in held.blocks:
                users.setdefault(block, []).append(row)
        for row, count in work:
            held = self._rows[row]
            for position in range(held.computed, held.computed + count):
                block = held.blocks[position // size]
                for other in users[block]:
                    reader = self._rows[other]
                    reads = other != row and reader.computed > position
                    _require(other == row or reads, f"rows {row} and {other} both write to block {block}")
                    same = reader.blocks[position // size] == block
                    _require(same, f"row {row} writes to block {block}, which row {other} has at another place")

    def _compute(self, plan: device.Plan, work: list[tuple[int, int]]) -> device.StepDone:
        sampled: list[int] = []
        ends: list[int] = []
        logprobs: list[device.RowLogprobs] = []
        prompt_logprobs: list[device.PromptLogprobs] = []
        for row, count in work:
            held = self._rows[row]
            start = held.computed
            for position in range(start, start + count):
                self._kv[held.blocks[position // self.geometry.block_size]][position % self.geometry.block_size] = (
                    held.histories[position]
                )
            held.computed += count
            self._check_content(row, held)
            part = self._prompt_logprobs(row, held, start, count)
            if part is not None:
                prompt_logprobs.append(part)
            if held.computed < len(held.tokens):
                continue
            token = _sample(
                held.histories[-1], held.sampling, held.choice, len(held.tokens) - held.prompt_len, self.geometry
            )
            end = _end_of(token, held.sampling, self.geometry)
            if end is not None:
                ends += [len(sampled), end]
            if held.sampling.logprobs is not None:
                ids = [token, *range(held.sampling.logprobs)]
                logprobs.append(device.RowLogprobs(len(sampled), pack_u32(ids), pack_f32([-1.0] * len(ids))))
            sampled.append(token)
            held.tokens.append(token)
            held.note(token)
        return device.StepDone(
            self.epoch, plan.step, pack_u32(sampled), pack_u32(ends), tuple(logprobs), tuple(prompt_logprobs), 1000
        )

    def _check_content(self, row: int, held: _Row) -> None:
        size = self.geometry.block_size
        for start in range(0, held.computed, size):
            own = held.histories[start : min(start + size, held.computed)]
            _require(
                self._kv[held.blocks[start // size]][: len(own)] == own,
                f"row {row} reads from position {start} of {held.computed} on what is not its own history",
            )

    def _prompt_logprobs(self, row: int, held: _Row, start: int, count: int) -> device.PromptLogprobs | None:
        width = held.sampling.prompt_logprobs
        if width is None:
            return None
        first, last = start + 1, min(start + count, held.prompt_len - 1)
        if first > last:
            return None
        ids = [item for at in range(first, last + 1) for item in (held.tokens[at], *range(width))]
        return device.PromptLogprobs(row, first, width + 1, pack_u32(ids), pack_f32([-2.0] * len(ids)))
