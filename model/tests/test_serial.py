"""Serial arithmetic (failure mode S-01; MRC-REQ-001, MRC-REQ-002)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import serial

WIDTHS = st.sampled_from((8, 15, 16, 24, 32))
ANY = st.integers(-(1 << 40), 1 << 40)


@given(ANY, st.integers(-(1 << 23) + 1, (1 << 23) - 1))
def test_diff_undoes_add_from_any_start(start: int, count: int) -> None:
    """S-01: wherever the numbers start, the difference is the distance gone."""
    later = serial.add(start, count)
    assert 0 <= later < 1 << 24
    assert serial.diff(later, start) == count
    assert serial.before(start, later) == (count > 0)
    assert serial.not_after(start, later) == (count >= 0)
    assert serial.newest(start, later) == (later if count > 0 else start % (1 << 24))


@given(ANY, ANY, WIDTHS)
def test_diff_is_the_shortest_way(a: int, b: int, bits: int) -> None:
    """MRC-REQ-001, MRC-REQ-002: signed, of the given width, antisymmetric but at the far point."""
    d = serial.diff(a, b, bits)
    assert -(1 << bits - 1) <= d < 1 << bits - 1 and (a - b - d) % (1 << bits) == 0
    assert serial.diff(b, a, bits) == (d if d == -(1 << bits - 1) else -d)


def test_wrap_of_psn() -> None:
    """S-01: the neighbours of the wrap, and the far point, which counts as behind."""
    assert serial.add(0xFFFFFF, 1) == 0 and serial.add(0, -1) == 0xFFFFFF
    assert serial.diff(2, 0xFFFFF0) == 18 and serial.diff(0xFFFFF0, 2) == -18
    assert serial.diff(0x800000, 0) == serial.diff(0, 0x800000) == -(1 << 23)
    assert serial.diff(5, 0xFFFE, 16) == 7


@given(ANY, ANY, st.integers(0, 300))
def test_in_range(number: int, start: int, count: int) -> None:
    """Membership agrees with the difference."""
    assert serial.in_range(number, start, count) == (0 <= serial.diff(number, start) < count)


@given(ANY, WIDTHS)
def test_widths(value: int, bits: int) -> None:
    """Two's complement reading and fitting."""
    assert serial.wrap(serial.signed(value, bits), bits) == serial.wrap(value, bits)
    assert serial.fits(value, bits) == (0 <= value < 1 << bits)
    assert serial.fits(value, bits, is_signed=True) == (-(1 << bits - 1) <= value < 1 << bits - 1)


def test_width_must_be_positive() -> None:
    """A width of 0 is a mistake of the caller."""
    with pytest.raises(ValueError, match="positive"):
        serial.diff(1, 0, 0)
