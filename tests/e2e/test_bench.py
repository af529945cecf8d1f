"""The bench against the real service: what it reports agrees with the server's own counts."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deploy.bench.load.record import Outcome
from deploy.bench.output.result import read_result


def run_chairlift(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments], capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_live_server_is_measured(stack: Any, tmp_path: Path) -> None:
    """Sixteen requests, some of whose clients go away; counts agree with the scheduler's, and nothing stays behind."""
    before = stack.load().totals
    files = [tmp_path / name for name in ("r.json", "r.csv", "r.html")]
    printed = run_chairlift(
        "bench", "serve", "--target", stack.listen, "--ops", stack.ops, "--workload", "short-short", "--rate", "20",
        "--num-requests", "16", "--abandon-share", "0.25", "--seed", "3", "--warmup", "1", "--goodput", "ttft:60000",
        "--json", "--output", str(files[0]), "--csv", str(files[1]), "--html", str(files[2]),
    )  # fmt: skip
    figures, result = json.loads(printed), read_result(files[0])
    outcomes = [record.outcome for record in result.records]
    assert set(outcomes) == {Outcome.OK, Outcome.ABANDONED}
    assert figures["completed"] == outcomes.count(Outcome.OK)
    assert figures["failed"] == 0
    assert figures["model_id"] == result.conditions.model.name == "smollm2-135m"
    assert figures["request_goodput"] > 0
    # The server's clock starts after the intended sending and stops before the arrival.
    for record in result.records:
        if record.outcome is Outcome.OK:
            assert record.server.ttft_ms is not None
            assert record.server.ttft_ms <= record.ttft_ms
            assert record.output_tokens == record.wanted_tokens
    assert len(files[1].read_text().splitlines()) == 17
    assert "<svg" in files[2].read_text()
    deadline = time.monotonic() + 30
    while (after := stack.load()).num_running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert after.totals.requests_accepted - before.requests_accepted == 17
    assert (after.num_running, after.num_waiting, after.kv_blocks.used) == (0, 0, 0)


def test_a_stack_of_ones_own_is_started_and_measured() -> None:
    figures = json.loads(run_chairlift("bench", "peers-workload", "--single", "--repetitions", "1", "--json"))
    assert figures.keys() == {"decode_tok_s"}
    assert figures["decode_tok_s"] > 0
