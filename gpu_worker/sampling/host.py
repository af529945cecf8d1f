"""Sampling with a temperature on a CPU: numpy, one row after another, so that a row's bits depend on itself alone.

The token is the one that `choose.sample_rows` gives with the same noise. What is saved: noise is made for tokens that
can still win. With u the uniform number of a token, gumbel = -log(-log1p(-u)) <= -log(u), so a token of logit x beats
the value b of the likeliest token only if u <= exp(x - b): a few of them, found by comparing integers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.sampling.rows import CHOICE, MIN_P, SEED_HIGH, SEED_LOW, TEMPERATURE, TOP_K, TOP_P, HostColumns

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

NO_TOKEN = -1
_SALT_0, _SALT_1 = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B)
_FACTOR_1, _FACTOR_2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_LARGEST_UNIFORM = np.float32(1.0 - 2.0**-24)
_NUM_SORTED = 512
# Rounding of exp and log is far below this.
_SLACK = np.float32(2.0**31 * 1.001)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Two keys a row."""

    first: Words
    second: Words

    def of(self, row: int) -> "_Keys":
        """Those of one row, [1] each."""
        return _Keys(self.first[row : row + 1], self.second[row : row + 1])


class HostSampler:
    """Scratch memory for one vocabulary, and the sampling of rows over it."""

    def __init__(self, vocab_size: int) -> None:
        self._token_ids = np.arange(vocab_size, dtype=np.uint32)
        self._bits = np.empty(vocab_size, np.uint32)
        self._shifted = np.empty(vocab_size, np.uint32)
        self._numbers = np.empty(vocab_size, np.float32)
        self._bounds = np.empty(vocab_size, np.float32)

    def sample(
        self, logits: Floats, params: HostColumns, offsets: npt.NDArray[np.int64], *, filtered: bool
    ) -> npt.NDArray[np.int64]:
        """Token ids [rows] from logits [rows, V], which it overwrites; `NO_TOKEN` where none is finite or one is NaN.

        `offsets` [rows]: position of the token in its choice's output. `filtered`: every row has a filter, else none.
        """
        keys = _row_keys(params.integers.view(np.uint32), offsets.astype(np.uint32))
        temperatures = params.floats[:, TEMPERATURE]
        sampled = np.empty(len(logits), np.int64)
        for row, scaled in enumerate(logits):
            largest = scaled.max()
            if not np.isfinite(largest):
                sampled[row] = NO_TOKEN
                continue
            # Largest logit to 0, then the temperature: the largest then cannot overflow, and others may.
            with np.errstate(over="ignore"):
                scaled -= largest
                scaled /= temperatures[row]
            key = keys.of(row)
            sampled[row] = self._sample_kept(scaled, params, row, key) if filtered else self._sample_any(scaled, key)
        return sampled

    def _sample_kept(self, scaled: Floats, params: HostColumns, row: int, key: _Keys) -> int:
        kept = np.flatnonzero(scaled >= self._threshold(scaled, params, row))
        noise = _gumbel(_hash(self._token_ids[kept], key))
        return int(kept[np.argmax(noise + scaled[kept])])

    def _sample_any(self, scaled: Floats, key: _Keys) -> int:
        likeliest = int(scaled.argmax())
        to_beat = _gumbel(_hash(self._token_ids[likeliest : likeliest + 1], key))[0]
        bits, shifted, bounds = self._bits, self._shifted, self._bounds
        np.bitwise_xor(self._token_ids, key.first, out=bits)
        _mix(bits, shifted)
        np.bitwise_xor(bits, key.second, out=bits)
        _mix(bits, shifted)
        np.subtract(scaled, to_beat, out=bounds)
        np.exp(bounds, out=bounds)
        np.multiply(bounds, _SLACK, out=bounds)
        np.right_shift(bits, 1, out=shifted)
        # Signed: below 2**31 the bits are the same, and only that conversion is fast.
        np.copyto(self._numbers, shifted.view(np.int32), casting="unsafe")
        # The likeliest token is among them: its number is below its own bound.
        candidates = np.flatnonzero(self._numbers <= bounds)
        return int(candidates[np.argmax(_gumbel(bits[candidates]) + scaled[candidates])])

    def _threshold(self, scaled: Floats, params: HostColumns, row: int) -> np.float32:
        """Tokens at or above it may be sampled, ties included. As `filters.thresholds`, of which it is one row."""
        vocab_size = len(scaled)
        top_k, top_p = int(params.integers[row, TOP_K]), params.floats[row, TOP_P]
        limit = min(top_k, vocab_size) if top_k > 0 else vocab_size
        with np.errstate(divide="ignore"):
            by_min_p = np.log(params.floats[row, MIN_P])
        if limit == vocab_size and top_p >= 1:
            return np.float32(by_min_p)
        total = None if top_k > 0 else np.exp(scaled, out=self._bounds).sum(dtype=np.float64)
        for num_sorted in (min(_NUM_SORTED, vocab_size), vocab_size):
            values = _largest(scaled, num_sorted)
            if limit > num_sorted and top_k > 0:
                continue
            num_kept = limit
            if top_p < 1:
                mass = np.exp(values[:limit], dtype=np.float64).cumsum()
                # The first token that brings the mass to p is kept, and so is the largest whatever p is.
                wanted = float(top_p) * (mass[-1] if total is None else total)
                num_kept = min(int(np.searchsorted(mass, wanted)) + 1, limit)
            if num_kept <= num_sorted:
                return np.float32(max(values[num_kept - 1], by_min_p))
        return np.float32(by_min_p)


def _row_keys(integers: Words, offsets: Words) -> _Keys:
    """As `noise.row_keys`."""
    low, high, choice = integers[:, SEED_LOW], integers[:, SEED_HIGH], integers[:, CHOICE]
    first = _mixed(_mixed(_mixed(_mixed(low ^ _SALT_0) ^ high) ^ choice) ^ offsets)
    second = _mixed(_mixed(_mixed(_mixed(high ^ _SALT_1) ^ low) ^ offsets) ^ choice)
    return _Keys(first, second)


def _hash(token_ids: Words, key: _Keys) -> Words:
    """`noise.bits` of some tokens."""
    return _mixed(_mixed(token_ids ^ key.first) ^ key.second)


def _mixed(words: Words) -> Words:
    _mix(words, np.empty_like(words))
    return words


def _mix(words: Words, scratch: Words) -> None:
    """`noise.mix`, in place."""
    np.right_shift(words, 16, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _FACTOR_1, out=words)
    np.right_shift(words, 15, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _FACTOR_2, out=words)
    np.right_shift(words, 16, out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def _gumbel(bits: Words) -> Floats:
    """`noise.gumbel` from its bits."""
    uniform = (bits >> 1).astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(2.0**-31)
    np.minimum(uniform, _LARGEST_UNIFORM, out=uniform)
    np.negative(uniform, out=uniform)
    exponential = np.negative(np.log1p(uniform))
    noise: Floats = np.negative(np.log(exponential))
    return noise


def _largest(values: Floats, count: int) -> Floats:
    """The `count` largest, falling."""
    head = values if count == len(values) else np.partition(values, len(values) - count)[-count:]
    return np.sort(head)[::-1]
