"""Chance in pauses: clients that failed together do not come back together."""

import random

_SYSTEM = random.SystemRandom()


def jitter() -> float:
    """Uniform in [0, 1)."""
    return _SYSTEM.random()
