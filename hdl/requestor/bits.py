"""Small combinational helpers: serial differences, first set bit, thermometer masks, rotations. All are trees or muxes, none holds state.

Those that take ``m`` add combinational signals to it; inside a state machine they are given another module, since they always run.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, C, Cat, Module, Mux, Signal, Value, ValueLike

from hdl.params import Params


def serial(diff: Value, bits: int = 24) -> Value:
    """``diff`` as a serial (signed ``bits``-bit) difference."""
    return diff[:bits].as_signed()


def bind(m: Module, value: ValueLike) -> Signal:
    """``value`` as a signal of ``m``: an expression that is used more than once would be built more than once."""
    value = Value.cast(value)
    signal = Signal(len(value))
    m.d.comb += signal.eq(value)
    return signal


def any_first(m: Module, bits: ValueLike) -> tuple[Value, Value]:
    """(some bit is set, index of the lowest set bit) of ``bits``, as a tree of depth log2(width). The index is 0 when none is set."""
    bits = Value.cast(bits)
    padded = bind(m, Cat(bits, C(0, (1 << (len(bits) - 1).bit_length()) - len(bits))))
    level: list[tuple[Value, Value]] = [(padded[i], C(0, 0)) for i in range(len(padded))]
    while len(level) > 1:
        merged: list[tuple[Value, Value]] = []
        for (low, low_index), (high, high_index) in zip(level[::2], level[1::2], strict=True):
            index = Cat(Mux(low, low_index, high_index), ~low & high)
            merged.append((bind(m, low | high), bind(m, index)))
        level = merged
    found, index = level[0]
    return found, index if len(index) else C(0, 1)


def first_cyclic(m: Module, bits: ValueLike, start: ValueLike) -> tuple[Value, Value]:
    """(some bit is set, index of the first set bit at or after ``start``, cyclic). ``start`` = width means from 0."""
    bits = bind(m, bits)
    above, above_index = any_first(m, bits & ~thermometer(m, start, len(bits)))
    found, index = any_first(m, bits)
    return found, bind(m, Mux(above, above_index, index))


def thermometer(m: Module, count: ValueLike, width: int) -> Signal:
    """The lowest ``count`` of ``width`` bits set (all of them when count >= width)."""
    count = bind(m, count)
    return bind(m, Cat(count > i for i in range(width)))


def clamp_row(m: Module, diff: ValueLike) -> Value:
    """A serial 24-bit PSN difference clamped to 0..64: how many bits of a row lie below that PSN."""
    diff = bind(m, diff)
    return Mux(diff[23], 0, Mux(diff[6:23].any(), 64, diff[:6]))


def xor_order(m: Module, bits: ValueLike, r: Value) -> Signal:
    """``result[i] = bits[i XOR r]``; the width of ``bits`` is a power of two."""
    current = bind(m, bits)
    for k in range((len(current) - 1).bit_length()):
        step = 1 << k
        current = bind(m, Mux(r[k], Cat(current[i ^ step] for i in range(len(current))), current))
    return current


def rotate_left(m: Module, bits: ValueLike, amount: Value) -> Signal:
    """``bits`` rotated towards the more significant end by ``amount``; the width is a power of two."""
    current = bind(m, bits)
    width = len(current)
    for k in range((width - 1).bit_length()):
        step = 1 << k
        current = bind(m, Mux(amount[k], Cat(current[width - step:], current[:width - step]), current))
    return current


def select(items: Sequence[ValueLike], index: Value) -> Value:
    """``items[index]``; an index beyond the end gives the last."""
    return Value.cast(Array(items)[index]) if len(items) > 1 else Value.cast(items[0])


def _log2(count: int) -> int:
    return (count - 1).bit_length()


def plane_of(params: Params, evi: Value) -> Value:
    """Plane of an EV index."""
    low, width = _log2(params.evs), _log2(params.planes)
    return evi[low:low + width] if width else C(0, 1)


def ev_of(params: Params, evi: Value) -> Value:
    """Index of an EV inside its plane."""
    width = _log2(params.evs)
    return evi[:width] if width else C(0, 1)


def evi_of(params: Params, plane: Value, ev: Value) -> Value:
    """EV index from plane and index inside the plane."""
    return Cat(ev[:_log2(params.evs)], plane[:_log2(params.planes)], C(0, 1))[:params.evi_bits]
