"""What the scheduler itself costs, for the report: the core's steps beside vLLM's, and a long simulation."""

import os
import subprocess
import sys
import time
from typing import Any

_BOUNDS = {
    "steady": {"64": 60, "256": 150, "1024": 600},
    "churn": {"64": 200, "256": 700, "1024": 2500},
}
_COMMAND = ["simulate", "--trace", "poisson", "--rate", "14", "--num-requests", "100000", "--json"]


def measure_scale() -> dict[str, float]:
    """Runs the long simulation in a process of its own: seconds of processor and by the clock, MiB at most."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "deploy.cli", *_COMMAND], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, _COMMAND)
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.monotonic() - started,
        "max_rss_mib": usage.ru_maxrss / 1024,
    }


def describe_scale(scale: dict[str, float]) -> list[str]:
    """A section of the report."""
    return [
        "## A long simulation",
        "",
        f"100,000 requests: {scale['cpu_s']:.0f} s of one core ({scale['wall_s']:.0f} s by the clock),",
        f"{scale['max_rss_mib']:.0f} MiB at most.",
        "",
        "```",
        f"chairlift {' '.join(_COMMAND)}",
        "```",
    ]


def describe_speed(speed: dict[str, Any]) -> list[str]:
    """A section of the report, from what `chairlift bench scheduler --json` printed."""
    lines = [
        "## What a step of the core costs",
        "",
        "Microseconds of one core: a result decoded, the next plan made, plan and deltas encoded. The device only",
        "counts. Steady: all decode, prompt lengths staggered; aligned: all block borders fall on one step; churn:",
        "Azure's lengths, one arrival an end. Each figure is that of the quietest round.",
        "",
        "| µs a step | running | median | mean | p99 | to reach |",
        "|---|---|---|---|---|---|",
    ]
    for name, by_size in speed.items():
        if name == "vllm" or not isinstance(by_size, dict):
            continue
        for size, figures in by_size.items():
            wanted = _BOUNDS.get(name, {}).get(size)
            bound = "" if wanted is None else f"{wanted} ({'mean' if name == 'churn' else 'median'})"
            cells = " | ".join(f"{figures[key]:.0f}" for key in ("median_us", "mean_us", "p99_us"))
            lines.append(f"| {name} | {size} | {cells} | {bound} |")
    lines += [
        "",
        f"A Submit with 10,000 waiting, the prediction of its first token included: {speed['submit_us']:.0f} µs, and",
        f"{speed['submit_hashing_us']:.0f} µs of hashing (256 tokens).",
        f"A waiting request weighs {speed['bytes_per_waiting']} bytes, its token ids aside.",
        "",
        "```",
        "chairlift bench scheduler --vllm PYTHON_OF_AN_ENVIRONMENT_WITH_VLLM --json",
        "```",
    ]
    return lines + (_beside_vllm(speed) if "vllm" in speed else [])


def _beside_vllm(speed: dict[str, Any]) -> list[str]:
    vllm = speed["vllm"]
    lines = [
        "",
        f"Beside it, in the same sitting, the scheduler class of vLLM {vllm['version']} (`schedule()` and",
        "`update_from_output()`, no message encoded), driven the same way:",
        "",
        "| µs a step, median | running | Chairlift | vLLM | |",
        "|---|---|---|---|---|",
    ]
    for name in ("steady", "waiting_10000"):
        for size, figures in vllm[name].items():
            own, theirs = speed[name][size]["median_us"], figures["median_us"]
            lines.append(f"| {name} | {size} | {own:.0f} | {theirs:.0f} | {theirs / own:.0f} × |")
    return lines
