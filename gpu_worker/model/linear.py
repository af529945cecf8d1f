"""Matrix products with weights. A layer is an object, so that packed and quantised ones can take its place."""

from typing import Protocol

import torch
from torch.nn import functional


class Linear(Protocol):
    """``y = x W^T + b``."""

    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] to [num_tokens, out_features], same dtype."""
        ...


class DenseLinear:
    """Weights as torch stores them: [out_features, in_features], in the model's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features = weight.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] to [num_tokens, out_features], same dtype."""
        return functional.linear(x, self.weight, self.bias)
