"""The token of each row: the largest logit, or, with a temperature, seeded Gumbel-max over what the filters leave.

A row whose logits hold NaN has no token: it gets `NO_TOKEN`, and its neighbours theirs.
"""

import numpy as np
import torch

from gpu_worker.sampling.filters import SortedLogits, thresholds
from gpu_worker.sampling.noise import gumbel, row_keys
from gpu_worker.sampling.rows import CHOICE, SEED_HIGH, SEED_LOW, TEMPERATURE, DeviceColumns

Keys = tuple[torch.Tensor, torch.Tensor]

NO_TOKEN = -1
_NUM_CANDIDATES = 512
# Rows are taken in slices of this many logits, so that a CPU's caches hold the intermediate results.
_SLICE_ELEMENTS = 1 << 17


def greedy_rows(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit's id in each row of [rows, V], the lowest id among equals: [rows] int64."""
    # NaN counts as the largest of all, in numpy, whose loop is several times faster on a CPU, and in torch.
    if logits.device.type == "cpu":
        values = logits.numpy()
        found = values.argmax(axis=1)
        found[np.isnan(values[np.arange(len(found)), found])] = NO_TOKEN
        return torch.from_numpy(found)
    token_ids = logits.argmax(dim=1)
    return token_ids.masked_fill_(logits.gather(1, token_ids[:, None]).squeeze(1).isnan(), NO_TOKEN)


def sample_rows(logits: torch.Tensor, params: DeviceColumns, offsets: torch.Tensor, *, filtered: bool) -> torch.Tensor:
    """Token ids [rows] int64 from logits [rows, V] float32 that the call may overwrite.

    `offsets` is [rows] int32: position of the token in its choice's output. `filtered`: every row has a filter, else
    none has.
    """
    num_slice_rows = max(1, _SLICE_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    sampled = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for start in range(0, len(logits), num_slice_rows):
        rows = slice(start, start + num_slice_rows)
        part = DeviceColumns(params.floats[rows], params.integers[rows])
        keys = _keys(part, offsets[rows])
        scaled = _scale(logits[rows], part)
        token_ids = _sample_filtered(scaled, part, keys) if filtered else _largest_with_noise(scaled, keys)
        # One NaN makes the row's largest logit NaN, and with it every value.
        sampled[rows] = token_ids.masked_fill(scaled[:, 0].isnan(), NO_TOKEN)
    return sampled


def _keys(params: DeviceColumns, offsets: torch.Tensor) -> Keys:
    columns = params.integers
    return row_keys(columns[:, SEED_LOW], columns[:, SEED_HIGH], columns[:, CHOICE], offsets)


def _scale(logits: torch.Tensor, params: DeviceColumns) -> torch.Tensor:
    """Largest logit to 0, then the temperature, in place: a tiny temperature then cannot overflow."""
    logits -= logits.amax(dim=1, keepdim=True)
    logits /= params.float_column(TEMPERATURE)
    return logits


def _largest_with_noise(scaled: torch.Tensor, keys: Keys) -> torch.Tensor:
    token_ids = torch.arange(scaled.shape[1], dtype=torch.int32, device=scaled.device)
    return gumbel(keys, token_ids).add_(scaled).argmax(dim=1)


def _sample_filtered(scaled: torch.Tensor, params: DeviceColumns, keys: Keys) -> torch.Tensor:
    """Nearly always the largest few hundred logits decide; a row that needs more is sorted whole.

    Both ways see the same values and the same noise, so that they give the same token.
    """
    # Looking at which rows need more would make the host wait for a GPU, whose sort is fast.
    if scaled.device.type != "cpu":
        return _sample_sorted(scaled, params, keys)
    values, token_ids = scaled.topk(min(_NUM_CANDIDATES, scaled.shape[1]), dim=1)
    total_mass = scaled.exp().sum(dim=1)
    threshold = thresholds(SortedLogits(values, total_mass, scaled.shape[1]), params)
    noisy = gumbel(keys, token_ids.int()).add_(values).masked_fill_(values < threshold[:, None], float("-inf"))
    is_best = noisy == noisy.amax(dim=1, keepdim=True)
    sampled = torch.where(is_best, token_ids, scaled.shape[1]).amin(dim=1)
    # A tie at the threshold may go on past the candidates.
    needs_more = torch.nonzero(values[:, -1] >= threshold).flatten()
    if len(needs_more):
        part = (keys[0][needs_more], keys[1][needs_more])
        sampled[needs_more] = _sample_sorted(scaled[needs_more], params.take(needs_more), part)
    return sampled


def _sample_sorted(scaled: torch.Tensor, params: DeviceColumns, keys: Keys) -> torch.Tensor:
    values = scaled.sort(dim=1, descending=True).values
    threshold = thresholds(SortedLogits(values, scaled.exp().sum(dim=1), scaled.shape[1]), params)
    return _largest_with_noise(scaled.masked_fill(scaled < threshold[:, None], float("-inf")), keys)
