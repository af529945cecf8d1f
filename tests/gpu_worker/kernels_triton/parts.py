"""Proofs in parts, so that each core has one."""


def part_of(text: str) -> tuple[int, int]:
    """``I/N`` as (first index, step): every N-th of a list. Raises ValueError."""
    index, _, count = text.partition("/")
    part, parts = int(index), int(count)
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part - 1, parts
