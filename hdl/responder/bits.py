"""Small pure expressions of the responder: serial differences, first set bit, masks. All are trees or one adder deep."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Mux, Value, ValueLike

from model import spec


def sdiff(a: ValueLike, b: ValueLike, bits: int = spec.PSN_BITS) -> Value:
    """How far the serial number ``a`` is ahead of ``b``, signed, ``bits`` wide."""
    return (Value.cast(a) - Value.cast(b))[:bits].as_signed()


def first_one(value: Value) -> tuple[Value, Value]:
    """(any bit set, index of the lowest set bit), a balanced tree; the index has ceil(log2(width)) bits, and no meaning when there is none."""
    if len(value) == 1:
        return value[0], Const(0, 0)
    half = 1 << ((len(value) - 1).bit_length() - 1)
    any_lo, index_lo = first_one(value[:half])
    any_hi, index_hi = first_one(value[half:])
    width = (len(value) - 1).bit_length()
    high = Cat(index_hi, Const(0, width - 1 - len(index_hi)), Const(1, 1))
    return any_lo | any_hi, Mux(any_lo, index_lo, high)[:width]


def from_bit(index: Value, width: int) -> Value:
    """Mask of ``width`` bits whose bits ``index`` and above are set."""
    return ((Const((1 << width) - 1, width)) << index)[:width]


def bit_of(vector: ValueLike, index: Value) -> Value:
    """The bit of ``vector`` at ``index``, to read. (A shift of full width: the narrower one that ``bit_select`` becomes is a lint error.)"""
    return (Value.cast(vector) >> index)[0]


def item_of(items: Any, index: Value) -> Any:
    """The element of an array view at ``index``, to read, as a multiplexer."""
    return Array(Value.cast(items[i]) for i in range(items.shape().length))[index]


def set_flag(vector: Value, index: Value) -> Any:
    """The bit of ``vector`` at ``index``, to assign."""
    return vector.bit_select(index, 1)
