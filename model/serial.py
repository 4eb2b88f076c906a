"""Serial-number arithmetic: numbers that wrap, such as PSN (24 bits), MSN (16 bits) and timestamps (16-bit ticks of 128 ns).

Every comparison of wrapping numbers in the model goes through :func:`diff`, so that start values near the wrap behave like any other.
All functions take plain integers, reduce them modulo ``2**bits`` first and raise ValueError when ``bits`` is not positive.
Source: facts 2 (widths) and 3 (d = signed 24-bit difference); MRC-REQ-001, MRC-REQ-002.
"""

from __future__ import annotations

from .spec import PSN_BITS


def mask(bits: int) -> int:
    """All ones of ``bits`` bits."""
    if bits <= 0:
        raise ValueError(f"a width must be positive, not {bits}")
    return (1 << bits) - 1


def wrap(value: int, bits: int = PSN_BITS) -> int:
    """``value`` modulo ``2**bits``: 0 .. 2**bits - 1."""
    return value & mask(bits)


def signed(value: int, bits: int) -> int:
    """The two's complement reading of the low ``bits`` bits of ``value``: -2**(bits-1) .. 2**(bits-1) - 1."""
    value &= mask(bits)
    return value - (1 << bits) if value >> (bits - 1) else value


def fits(value: int, bits: int, is_signed: bool = False) -> bool:
    """Whether ``value`` can be held in ``bits`` bits (two's complement when ``is_signed``)."""
    return signed(value, bits) == value if is_signed else value & mask(bits) == value


def add(number: int, count: int, bits: int = PSN_BITS) -> int:
    """The serial number ``count`` (which may be negative) after ``number``."""
    return (number + count) & mask(bits)


def diff(a: int, b: int, bits: int = PSN_BITS) -> int:
    """How far ``a`` is ahead of ``b``, signed: -2**(bits-1) .. 2**(bits-1) - 1. The far point, 2**(bits-1) away, counts as behind."""
    return signed(a - b, bits)


def before(a: int, b: int, bits: int = PSN_BITS) -> bool:
    """Whether ``a`` lies strictly before ``b``. At the far point both before(a, b) and before(b, a) hold: compare nearer numbers only."""
    return diff(a, b, bits) < 0


def not_after(a: int, b: int, bits: int = PSN_BITS) -> bool:
    """Whether ``a`` equals ``b`` or lies before it."""
    return diff(a, b, bits) <= 0


def newest(a: int, b: int, bits: int = PSN_BITS) -> int:
    """The later of two serial numbers."""
    return wrap(b if before(a, b, bits) else a, bits)


def in_range(number: int, start: int, count: int, bits: int = PSN_BITS) -> bool:
    """Whether ``number`` is one of the ``count`` serial numbers start, start + 1, ...; ``count`` is 0 .. 2**bits."""
    return wrap(number - start, bits) < count
