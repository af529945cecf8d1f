"""Where a fault of ours came from. What its message says is left out: it may quote a request."""

import traceback

_MOST_FRAMES = 6


def innermost_frames(error: BaseException) -> list[str]:
    """``file:line function`` of the last frames that it passed, outermost first."""
    summary = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in summary]
