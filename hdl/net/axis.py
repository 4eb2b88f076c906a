"""AXI streams of Ethernet frames: the payload of a beat and what its byte lanes say."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Value
from amaranth.lib import data


def axis_beat(width: int) -> data.StructLayout:
    """One beat of a frame without FCS: byte 0 of the wire in the lowest lane, ``keep`` a prefix of ones and full before ``last``.

    ``bad`` is tuser: a receiver's MAC sets it for a frame that it calls broken, we set it on the last beat of a frame that we had to cut.
    """
    return data.StructLayout({"data": width, "keep": width // 8, "last": 1, "bad": 1})


def payload_beat(width: int) -> data.StructLayout:
    """A word of payload: full before ``last``, bytes behind the payload's end zero; its length travels with the descriptor."""
    return data.StructLayout({"data": width, "last": 1})


def lanes(count: Value, width: int) -> Value:
    """A bit for each of ``width`` byte lanes, the lowest ``count`` of them set."""
    return Cat(Const(lane, len(count)) < count for lane in range(width))


def masked(word: Value, keep: Value) -> Value:
    """``word`` with the bytes zeroed whose bit in ``keep`` is 0."""
    return word & Cat(bit.replicate(8) for bit in keep)
