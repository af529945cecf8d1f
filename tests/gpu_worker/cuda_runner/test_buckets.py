"""Batch sizes that decode graphs are captured for."""

import importlib
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def buckets() -> ModuleType:
    return importlib.import_module("gpu_worker.cuda_runner.buckets")


@pytest.mark.parametrize("most", [1, 3, 8, 100, 256, 1000])
def test_every_batch_has_a_bucket_with_little_padding(buckets: ModuleType, most: int) -> None:
    sizes = buckets.graph_buckets(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most
    for num_rows in range(1, most + 1):
        bucket = buckets.bucket_for(num_rows, sizes)
        assert bucket >= num_rows
        assert bucket - num_rows <= max(3, num_rows / 2)


def test_a_batch_above_every_bucket_has_none(buckets: ModuleType) -> None:
    assert buckets.bucket_for(9, (1, 2, 8)) is None
    assert buckets.bucket_for(1, ()) is None
