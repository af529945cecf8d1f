"""Every kernel against its torch reference on the CPU, over pages whose unowned slots are NaN."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.timeout(660)


@pytest.mark.parametrize("group", ["attention", "decode", "ops", "sampling", "plan", "runner"])
def test_kernels_equal_their_references(group: str, run_proof: Callable[..., str]) -> None:
    print(run_proof("interpreter.run", group))


def test_planted_bugs_are_caught(run_proof: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    report = run_proof("interpreter.mutants")
    with capsys.disabled():
        print(f"\n{report.splitlines()[-1]}")
    assert "SURVIVED" not in report
