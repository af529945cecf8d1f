"""Columns of unsigned integers as little-endian bytes: how token ids, block ids and handles travel."""

import sys
from array import array
from collections.abc import Iterable

_SWAP = sys.byteorder == "big"


class ColumnError(ValueError):
    """A packed column whose length is not a whole number of items."""


def _pack(typecode: str, values: Iterable[int]) -> bytes:
    column = values if isinstance(values, array) and values.typecode == typecode else array(typecode, values)
    if _SWAP:
        column = array(typecode, column)
        column.byteswap()
    return column.tobytes()


def _unpack(typecode: str, packed: bytes) -> "array[int]":
    column = array(typecode)
    if len(packed) % column.itemsize:
        raise ColumnError(f"a column of {column.itemsize}-byte items cannot be {len(packed)} bytes long")
    column.frombytes(packed)
    if _SWAP:
        column.byteswap()
    return column


def pack_u32(values: Iterable[int]) -> bytes:
    """Packs token, block or row ids (each < 2**32; raises OverflowError otherwise) at 4 bytes an item."""
    return _pack("I", values)


def unpack_u32(packed: bytes) -> "array[int]":
    """The inverse of `pack_u32`: a new ``array('I')``. Raises ColumnError when the length is not a multiple of 4."""
    return _unpack("I", packed)


def pack_u64(values: Iterable[int]) -> bytes:
    """Packs stream handles (each < 2**64; raises OverflowError otherwise) at 8 bytes an item."""
    return _pack("Q", values)


def unpack_u64(packed: bytes) -> "array[int]":
    """The inverse of `pack_u64`: a new ``array('Q')``. Raises ColumnError when the length is not a multiple of 8."""
    return _unpack("Q", packed)


def pack_f32(values: Iterable[float]) -> bytes:
    """Packs log-probabilities at 4 bytes an item."""
    column = array("f", values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def unpack_f32(packed: bytes) -> "array[float]":
    """The inverse of `pack_f32`: a new ``array('f')``. Raises ColumnError when the length is not a multiple of 4."""
    column: array[float] = array("f")
    if len(packed) % column.itemsize:
        raise ColumnError(f"a column of {column.itemsize}-byte items cannot be {len(packed)} bytes long")
    column.frombytes(packed)
    if _SWAP:
        column.byteswap()
    return column
