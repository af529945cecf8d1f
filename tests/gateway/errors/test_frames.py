"""A fault is told by where it came from, never by what its message says."""

from gateway.errors.frames import innermost_frames


def _fail(depth: int) -> None:
    if depth:
        _fail(depth - 1)
    raise ValueError("SECRET prompt")


def test_the_last_frames_without_the_message() -> None:
    try:
        _fail(20)
    except ValueError as error:
        told = innermost_frames(error)
    assert len(told) == 6
    assert all(frame.startswith("test_frames.py:") and frame.endswith(" _fail") for frame in told)
    assert "SECRET" not in " ".join(told)
