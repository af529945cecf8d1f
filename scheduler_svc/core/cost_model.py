"""What a step costs on the device, learnt from recent steps: fixed + per decode row + per prefill token + per KV token.

Least squares over two windows of recent steps, with prompt tokens and without, so that a long stretch of pure decode
does not make the model forget what prefill costs. Robust: a measurement far above its prediction counts only up to a
few times the usual error, which lets a stall pass and still follows a device that has become slower. Coefficients are
never negative. Floats, but only + - * / in a fixed order: the same everywhere.
"""

from collections import deque
from typing import NamedTuple

import msgspec

_NUM_TERMS = 4
_PAIRS = ((0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3))
"""Entries of the symmetric matrix, in the order of the sums."""
_WINDOW = 128
_WARM_UP = 32
"""Measurements before the model is believed."""
_WARM_UP_PREFILL = 6
"""Of which with prompt tokens."""
_REFIT_EVERY = 8
_DECODES_PER_SAMPLE = 4
_CLIP = 4.0
"""Times the usual error that a measurement may lie above its prediction."""
_MARGIN = 0.02
"""Share of the prediction that no measurement is blamed for."""
_RIDGE = 1e-4
_SCALES = (1.0, 64.0, 512.0, 65536.0)
"""Typical sizes of the terms, so that the equations are well conditioned."""


class StepShape(NamedTuple):
    """What a step computes."""

    num_decodes: int
    num_prefill_tokens: int
    num_kv_tokens: int
    """Positions that attention reads: the context of each row, once."""


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds; see the module."""

    fixed: float
    decode_row: float
    prefill_token: float
    kv_token: float = 0.0

    def step_ns(self, shape: StepShape) -> float:
        """Predicted time of a step."""
        return (
            self.fixed
            + self.decode_row * shape.num_decodes
            + self.prefill_token * shape.num_prefill_tokens
            + self.kv_token * shape.num_kv_tokens
        )


class Window:
    """The last measurements of one kind, and the sums of the normal equations over them: whole numbers, so exact."""

    def __init__(self) -> None:
        self._samples: deque[tuple[StepShape, int]] = deque()
        self.sums = [0] * len(_PAIRS)
        self.products = [0] * _NUM_TERMS

    def __len__(self) -> int:
        return len(self._samples)

    def samples(self) -> list[tuple[StepShape, int]]:
        """All of them, oldest first."""
        return list(self._samples)

    def add(self, shape: StepShape, value: int) -> None:
        """One more; the oldest goes when there are enough."""
        self._samples.append((shape, value))
        self._count(shape, value, 1)
        if len(self._samples) > _WINDOW:
            oldest, its_value = self._samples.popleft()
            self._count(oldest, its_value, -1)

    def _count(self, shape: StepShape, value: int, sign: int) -> None:
        decodes, prefill, kv = shape
        sums, products = self.sums, self.products
        for i, product in enumerate(
            (1, decodes, prefill, kv, decodes * decodes, decodes * prefill, decodes * kv, prefill * prefill)
        ):
            sums[i] += sign * product
        sums[8] += sign * prefill * kv
        sums[9] += sign * kv * kv
        value *= sign
        products[0] += value
        products[1] += decodes * value
        products[2] += prefill * value
        products[3] += kv * value


class CostModel:
    """Learns from `observe`; `costs` is None until it can be believed."""

    def __init__(self) -> None:
        self._decode_only = Window()
        self._with_prefill = Window()
        self._num_seen = 0
        self._num_decode_only = 0
        self._usual_error = 0.0
        self.costs: StepCosts | None = None

    def observe(self, shape: StepShape, took_ns: int) -> None:
        """A step of this shape took so long."""
        if took_ns <= 0:
            return
        if not shape.num_prefill_tokens:
            # One pure decode is much like the next.
            self._num_decode_only += 1
            if self._num_decode_only % _DECODES_PER_SAMPLE and len(self._decode_only) >= _WARM_UP:
                return
        if self.costs is not None:
            predicted = self.costs.step_ns(shape)
            error = abs(took_ns - predicted)
            took_ns = min(took_ns, int(predicted + _CLIP * self._usual_error + _MARGIN * predicted))
            self._usual_error += (min(error, _CLIP * self._usual_error + _MARGIN * predicted) - self._usual_error) / 32
        window = self._with_prefill if shape.num_prefill_tokens else self._decode_only
        window.add(shape, took_ns)
        self._num_seen += 1
        if self._num_seen % _REFIT_EVERY == 0:
            self._refit()

    def _refit(self) -> None:
        one, other = self._decode_only, self._with_prefill
        if len(one) + len(other) < _WARM_UP or len(other) < _WARM_UP_PREFILL:
            return
        if self.costs is None:
            self._tame_outliers()
        self._refit_windows()

    def _tame_outliers(self) -> None:
        """Before the first fit, with nothing to compare with but each other: a device's first steps are often slow.

        By a rough measure of work, those that took several times as long as the typical one count as a few of it.
        """
        samples = self._decode_only.samples() + self._with_prefill.samples()
        rates = sorted(took_ns / _rough_work(shape) for shape, took_ns in samples)
        bound = _CLIP * rates[len(rates) // 2]
        self._decode_only, self._with_prefill = Window(), Window()
        for shape, took_ns in samples:
            window = self._with_prefill if shape.num_prefill_tokens else self._decode_only
            window.add(shape, min(took_ns, int(bound * _rough_work(shape))))

    def _refit_windows(self) -> None:
        one, other = self._decode_only, self._with_prefill
        sums = [a + b for a, b in zip(one.sums, other.sums, strict=True)]
        products = [a + b for a, b in zip(one.products, other.products, strict=True)]
        found = _fit(sums, products)
        self.costs = StepCosts(fixed=found[0], decode_row=found[1], prefill_token=found[2], kv_token=found[3])


def _rough_work(shape: StepShape) -> float:
    """Multiples of an empty step; right within a few times on any device."""
    return 1.0 + shape.num_decodes / 256 + shape.num_prefill_tokens / 128 + shape.num_kv_tokens / 4_000_000


def _fit(sums: list[int], products: list[int]) -> list[float]:
    """Least squares with coefficients that are not negative, by leaving out terms that would be."""
    matrix = [[0.0] * _NUM_TERMS for _ in range(_NUM_TERMS)]
    for (i, j), total in zip(_PAIRS, sums, strict=True):
        matrix[i][j] = matrix[j][i] = total / (_SCALES[i] * _SCALES[j])
    vector = [total / scale for total, scale in zip(products, _SCALES, strict=True)]
    for i in range(_NUM_TERMS):
        matrix[i][i] += _RIDGE * sums[0]
    used = list(range(_NUM_TERMS))
    while used:
        found = _solve([[matrix[i][j] for j in used] for i in used], [vector[i] for i in used])
        lowest = min(range(len(used)), key=found.__getitem__)
        if found[lowest] >= 0.0:
            break
        del used[lowest]
    full = [0.0] * _NUM_TERMS
    for i, value in zip(used, found, strict=True):
        full[i] = value / _SCALES[i]
    return full


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Gaussian elimination; the matrix is positive definite."""
    size = len(vector)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            vector[k] -= factor * vector[i]
    found = [0.0] * size
    for i in range(size - 1, -1, -1):
        rest = sum(matrix[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (vector[i] - rest) / matrix[i][i]
    return found
