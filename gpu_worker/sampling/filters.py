"""top_k, top_p and min_p as one threshold a row: every token at or above it may be sampled, ties included.

In transformers' order: the k largest, of these the fewest that hold p of their probability, of these the ones with at
least min_p of the largest probability.
"""

from dataclasses import dataclass

import torch

from gpu_worker.sampling.rows import MIN_P, TOP_K, TOP_P, DeviceColumns


@dataclass(frozen=True, slots=True)
class SortedLogits:
    """The largest n of each row's logits in falling order, 0 the largest, and the mass of the whole row."""

    values: torch.Tensor
    """[rows, n] float32, already divided by the temperature."""
    total_mass: torch.Tensor
    """[rows] sum of exp over the whole row."""
    vocab_size: int


def thresholds(sorted_logits: SortedLogits, params: DeviceColumns) -> torch.Tensor:
    """The threshold of each row, [rows].

    With only the head of a row given, a threshold that lies further down comes out as minus infinity.
    """
    values = sorted_logits.values
    num_values = values.shape[1]
    top_k = params.integers[:, TOP_K, None].long()
    limit = torch.where(top_k > 0, top_k, sorted_logits.vocab_size).clamp(max=sorted_logits.vocab_size)
    top_p = params.float_column(TOP_P)
    mass = values.exp().cumsum(dim=1)
    mass_of_k = mass.gather(1, limit.clamp(max=num_values) - 1)
    kept_mass = torch.where(top_k > 0, mass_of_k, sorted_logits.total_mass[:, None])
    # The first token that brings the mass to p is kept, and so is the largest whatever p is.
    enough_at = (mass < top_p * kept_mass).sum(dim=1, keepdim=True) + 1
    num_kept = torch.where(top_p < 1, torch.minimum(enough_at, limit), limit)
    smallest = values.gather(1, num_kept.clamp(max=num_values) - 1)
    is_known = (num_kept <= num_values) & ((limit <= num_values) | (top_k <= 0))
    smallest = torch.where(is_known, smallest, float("-inf"))
    return torch.maximum(smallest, params.float_column(MIN_P).log()).squeeze(1)
