"""What a person sees while models load: every stage, and not every per cent."""

import io

from deploy.launcher.progress import Progress


def test_stages_are_told_at_once_and_numbers_now_and_then() -> None:
    """A worker that tells each per cent would bury its own log under a hundred lines."""
    now = 0.0
    stream = io.StringIO()
    progress = Progress(stream, clock=lambda: now)
    progress.started("worker", 7)
    progress.loading("worker", "")
    for per_cent in range(100):
        now += 0.0625
        progress.loading("worker", f"loading weights, {per_cent} %")
    progress.loading("worker", "warming up")
    for _ in range(96):
        now += 0.125
        progress.loading("worker", "warming up")
    progress.ready("worker")
    assert stream.getvalue().splitlines() == [
        "chairlift: worker: starting (pid 7)",
        "chairlift: worker: loading weights, 0 % (0.1 s)",
        "chairlift: worker: loading weights, 32 % (2.1 s)",
        "chairlift: worker: loading weights, 64 % (4.1 s)",
        "chairlift: worker: loading weights, 96 % (6.1 s)",
        "chairlift: worker: warming up (6.2 s)",
        "chairlift: worker: warming up (16.2 s)",
        "chairlift: worker: ready after 18.2 s",
    ]


def test_a_quiet_one_tells_only_what_went_wrong() -> None:
    stream = io.StringIO()
    progress = Progress(stream, verbose=False)
    progress.started("worker", 7)
    progress.loading("worker", "loading")
    progress.ready("worker")
    assert stream.getvalue() == ""
    progress.restarting("worker", "killed by SIGKILL", 0.5)
    assert stream.getvalue() == "chairlift: worker: killed by SIGKILL; restart in 0.5 s\n"
