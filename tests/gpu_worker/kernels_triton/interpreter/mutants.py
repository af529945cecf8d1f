"""Bugs planted one at a time in the kernels: the cases must catch every one. ``python -m … mutants
[--part I/N]`` exits 1 if not.

A bug that a kernel could really have is the only measure of whether the cases look at the right things. Each runs in
a forked process that has imported everything but the kernels, so that a crash ends that process alone.
"""

import argparse
import importlib.util
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch

import gpu_worker.kernels.triton
from tests.gpu_worker.kernels_triton.interpreter import repair
from tests.gpu_worker.kernels_triton.interpreter.run import failures_of
from tests.gpu_worker.kernels_triton.parts import part_of

_DEVICE = "gpu_worker.kernels.triton.device"
_FOLDER = Path(gpu_worker.kernels.triton.__file__).parent / "device"


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    module: str
    old: str
    new: str
    group: str
    """Group of cases that must catch it."""


def _planted(group: str, module: str, *bugs: tuple[str, str, str]) -> list[Mutant]:
    """Bugs of one module, (name, old text, new text) each."""
    return [Mutant(name, module, old, new, group) for name, old, new in bugs]


def all_mutants() -> list[Mutant]:
    """Every planted bug."""
    return [
        *_planted(
            "attention",
            "tiles",
            ("causal: own position hidden", "position[None, :] <= own", "position[None, :] < own"),
            ("causal: one position too many", "position[None, :] <= own", "position[None, :] <= own + 1"),
            ("window one too long", "position[None, :] > own - window", "position[None, :] >= own - window"),
            ("accumulator not rescaled", "acc * alpha[:, None] + tl.dot", "acc + tl.dot"),
            ("sum not rescaled", "total * alpha + tl.sum", "total + tl.sum"),
            (
                "values of unowned slots read",
                "is_held[:, None], is_dim[None, :], MASKED",
                "is_held[:, None], is_dim[None, :], False",
            ),
        ),
        *_planted(
            "attention",
            "attention",
            ("window: start too late", "query - window + 1, 0) // BLOCK_N", "query - window + 17, 0) // BLOCK_N"),
            (
                "unmasked loop one tile too long",
                "plain_end = (context + first_query + 1) // BLOCK_N",
                "plain_end = tl.cdiv(end, BLOCK_N)",
            ),
            ("GQA: heads interleaved", "kv_head * GROUP + packed % GROUP", "packed % GROUP * NUM_KV_HEADS + kv_head"),
            ("block table of another row", "tl.load(rows_ptr + row).to(tl.int64)", "row.to(tl.int64)"),
            ("tokens before the first row counted", "base = tl.load(cu_q_ptr)", "base = tl.load(cu_q_ptr) * 0"),
            ("value scale forgotten", "inverse = inverse * tl.load(v_scale_ptr + kv_head)", "inverse = inverse"),
            ("key scale of another head", "scale * tl.load(k_scale_ptr + kv_head)", "scale * tl.load(k_scale_ptr)"),
        ),
        *_planted(
            "decode",
            "decode",
            ("split end not held to the length", "end = tl.minimum(begin + size, kv_len)", "end = begin + size"),
            ("empty splits joined", "is_used = begin + split * size < kv_len", "is_used = split < SPLITS"),
            ("splits not weighed", "weight = weight / tl.where(total == 0.0, 1.0, total)", "weight = weight"),
            ("lse without its sum", "m + tl.log2(safe)", "m"),
            ("decode sees no window", "DIM_PAD, BLOCK_N, True, HAS_WINDOW,", "DIM_PAD, BLOCK_N, True, False,"),
        ),
        *_planted(
            "decode",
            "tiles",
            ("page of the wrong block size", "(position % BLOCK_SIZE) * HEAD_DIM", "(position % 16) * HEAD_DIM"),
        ),
        *_planted(
            "ops",
            "rope_kv_write",
            ("rope: sign of the sine", "(k_first * cos - k_second * sin)", "(k_first * cos + k_second * sin)"),
            (
                "rope: halves swapped in the page",
                "v_pages_ptr + slot + half, v_second",
                "v_pages_ptr + slot + half, v_first",
            ),
            ("padding token writes a page", "if block < 0:", "if block < -1:"),
            ("rope: offset in the page ignored", "BLOCK_SIZE + offset) * HEAD_DIM", "BLOCK_SIZE) * HEAD_DIM"),
        ),
        *_planted(
            "ops",
            "elementwise",
            (
                "norm: residual not stored",
                "tl.store(residual_ptr + row + lane, rounded, mask=is_lane)",
                "rounded = rounded",
            ),
            ("norm: padded lanes in the mean", "tl.sum(x * x, 0) / SIZE", "tl.sum(x * x, 0) / SIZE_PAD"),
            ("silu: up taken for gate", "(2 * SIZE) + SIZE + lane", "(2 * SIZE) + lane"),
        ),
        *_planted(
            "int8",
            "int8_linear",
            ("int8: scale of another channel", "scale_ptr + column, mask", "scale_ptr + column * 0, mask"),
            ("int8: inputs past the end", "is_row[:, None] & is_lane[None, :]", "is_row[:, None]"),
            ("int8: bias left out", "    if HAS_BIAS:", "    if False:"),
        ),
        *_planted(
            "sampling-step",
            "noise",
            ("noise: choice ignored", "high) ^ which) ^ place", "high) ^ place) ^ which"),
            (
                "noise: shift keeps the sign",
                "x = x ^ (x >> 15)",
                "x = x ^ (x.to(tl.int32, bitcast=True) >> 15).to(tl.uint32, bitcast=True)",
            ),
        ),
        *_planted(
            "sampling",
            "sampling",
            (
                "offset counts the prompt",
                "offset = tl.load(integers + NUM_KNOWN) - tl.load(integers + PROMPT_LEN)",
                "offset = tl.load(integers + NUM_KNOWN)",
            ),
            (
                "penalties skip the prompt",
                "tl.where(counted != 0, repeated, x)",
                "tl.where(in_output != 0, repeated, x)",
            ),
            ("min_tokens one short", "< tl.load(integers + MIN_TOKENS):", "<= tl.load(integers + MIN_TOKENS) - 40:"),
            ("sampled token not counted", "written, count + 1)", "written, count)"),
        ),
        *_planted(
            "sampling-step",
            "filters",
            ("top_k keeps one more", "tl.sum(reached, 0) < target", "tl.sum(reached, 0) <= target"),
            ("min_p ignored", "threshold = tl.maximum(threshold, tl.log(min_p))", "threshold = threshold"),
        ),
        *_planted(
            "sampling-step",
            "logprobs",
            ("alternatives repeat", "(x == last) & (token > last_token)", "(x == last)"),
        ),
        *_planted(
            "plan",
            "plan",
            ("chunk starts one late", "end - count + within, 0)", "end - count + within + 1, 0)"),
            ("padding row has a length", "tl.where(row < 0, 0, end)", "end + 1"),
        ),
    ]


def _install(mutant: Mutant, folder: Path) -> None:
    """Puts the changed module where the wrappers will import it from."""
    source = (_FOLDER / f"{mutant.module}.py").read_text()
    assert mutant.old in source, f"{mutant.name}: its place is gone from {mutant.module}.py"
    path = folder / f"{mutant.module}.py"
    path.write_text(source.replace(mutant.old, mutant.new))
    name = f"{_DEVICE}.{mutant.module}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _start(mutant: Mutant, folder: Path) -> int:
    """Process id of a child that exits 0 when the cases passed and 1 when they failed."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            _install(mutant, folder)
            with redirect_stdout(io.StringIO()):
                code = 1 if failures_of(mutant.group, stop_at_first=True) else 0
        finally:
            os._exit(code)
    return child


def main(arguments: Sequence[str]) -> int:
    """Runs all, or every N-th; exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=part_of, default=(0, 1), metavar="I/N")
    first, step = parser.parse_args(arguments).part
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    repair.install()
    with tempfile.TemporaryDirectory() as folder:
        codes = _run_all(all_mutants()[first::step], Path(folder), 1 if step > 1 else os.cpu_count() or 1)
    survivors = [mutant for mutant, code in codes.items() if code == 0 or code > 1]
    for mutant in codes:
        print(f"{'SURVIVED' if mutant in survivors else 'caught':9s} {mutant.group:10s} {mutant.name}")
    print(f"{len(codes) - len(survivors)} of {len(codes)} planted bugs caught")
    return 1 if survivors else 0


def _run_all(mutants: list[Mutant], folder: Path, num_jobs: int) -> dict[Mutant, int]:
    """Exit code of each one's process, negative where it was ended by a signal."""
    running: dict[int, Mutant] = {}
    codes: dict[Mutant, int] = {}
    waiting = list(reversed(mutants))
    while waiting or running:
        while waiting and len(running) < num_jobs:
            mutant = waiting.pop()
            home = folder / str(len(waiting))
            home.mkdir()
            running[_start(mutant, home)] = mutant
        child, status = os.wait()
        codes[running.pop(child)] = os.waitstatus_to_exitcode(status)
    return {mutant: codes[mutant] for mutant in mutants}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
