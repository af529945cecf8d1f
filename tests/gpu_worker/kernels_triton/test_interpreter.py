"""Every kernel against its torch reference on the CPU, over pages whose unowned slots are NaN."""

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("group", ["attention", "decode", "ops", "sampling", "plan"])
def test_kernels_equal_their_references(group: str, run_proof: Callable[..., str]) -> None:
    print(run_proof("interpreter.run", group))
