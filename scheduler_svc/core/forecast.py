"""What predictions of the first token learn from, and how good they were.

What a prediction got wrong is measured: the ratio of truth to prediction corrects the next ones, the mean error is a
figure for operators. The prediction itself is in `prediction`.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scheduler_svc.core.request import Request

_INITIAL_OUTPUT = 128.0
_SMOOTHING = 1 / 64
_MAX_CORRECTION = 4.0


class Foretold(NamedTuple):
    """A prediction, made for one request."""

    raw_ns: int
    """As rolled forward."""
    ttft_ns: int
    """Corrected by what was learnt: what was told."""
    is_crowded: bool
    """Whether riders had to leave first."""


class Forecast:
    """What is learnt for predictions, and how good they were. An empty house and a full one err differently."""

    def __init__(self) -> None:
        self.mean_output = _INITIAL_OUTPUT
        """Output tokens of a choice, recently."""
        self.mean_prompt = 0.0
        """Prompt tokens computed for a choice, recently."""
        self.share_unforeseen = 0.0
        """Of choices that ended before the length at which they had to, recently."""
        self.mean_relative_error = 0.0
        """Of what was told, recently: |told - actual| / actual."""
        self.num_checked = 0
        self._num_ends = 0
        self._corrections = [1.0, 1.0]

    def correct(self, raw_ns: float, *, is_crowded: bool) -> Foretold:
        """The prediction to tell, by the ratio of truth to raw prediction in the recent past."""
        return Foretold(int(raw_ns), int(raw_ns * self._corrections[is_crowded]), is_crowded)

    @property
    def unforeseen_ends(self) -> float:
        """Ends of a choice, a token, that come before its length makes it end."""
        return self.share_unforeseen / max(self.mean_output, 1.0)

    def note_end(self, num_outputs: int, num_prompt: int, *, is_by_length: bool) -> None:
        """A choice ended by itself, with so many tokens."""
        self._num_ends += 1
        smoothing = max(_SMOOTHING, 1 / self._num_ends)
        self.mean_output += (num_outputs - self.mean_output) * smoothing
        self.mean_prompt += (num_prompt - self.mean_prompt) * smoothing
        self.share_unforeseen += (float(not is_by_length) - self.share_unforeseen) * smoothing

    def note_first_token(self, request: "Request", now: int) -> None:
        """The truth about a prediction."""
        foretold, actual = request.foretold, now - request.received_ns
        if foretold is None or foretold.raw_ns <= 0 or actual <= 0:
            return
        request.foretold = None
        self.num_checked += 1
        smoothing = max(_SMOOTHING, 1 / self.num_checked)
        self.mean_relative_error += (abs(foretold.ttft_ns - actual) / actual - self.mean_relative_error) * smoothing
        ratio = min(max(actual / foretold.raw_ns, 1 / _MAX_CORRECTION), _MAX_CORRECTION)
        self._corrections[foretold.is_crowded] += (ratio - self._corrections[foretold.is_crowded]) * _SMOOTHING
