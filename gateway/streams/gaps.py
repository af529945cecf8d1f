"""Times between the tokens of a choice: their median and their longest, in bounded memory."""

from array import array

_MAX_KEPT = 2048


class TokenGaps:
    """Keeps every gap up to 2,048, then every second of them, and so on: the median stays that of an even sample."""

    __slots__ = ("_kept", "_last", "_longest", "_skip", "_stride", "first_at")

    def __init__(self) -> None:
        self.first_at: float | None = None
        """When the first token came."""
        self._kept = array("d")
        self._last: float | None = None
        self._longest = 0.0
        self._stride = 1
        self._skip = 0

    def note(self, now: float) -> None:
        """A token has come, at `now` seconds."""
        last, self._last = self._last, now
        if last is None:
            self.first_at = now
            return
        gap = now - last
        self._longest = max(self._longest, gap)
        if self._skip:
            self._skip -= 1
            return
        self._skip = self._stride - 1
        self._kept.append(gap)
        if len(self._kept) == _MAX_KEPT:
            self._kept = self._kept[::2]
            self._stride *= 2
            self._skip = self._stride - 1

    @property
    def longest_ms(self) -> float | None:
        """None for fewer than two tokens."""
        return self._longest * 1e3 if len(self._kept) else None

    @property
    def median_ms(self) -> float | None:
        """None for fewer than two tokens."""
        count = len(self._kept)
        if not count:
            return None
        ordered = sorted(self._kept)
        return 1e3 * (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
