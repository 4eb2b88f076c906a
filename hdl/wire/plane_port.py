"""The send side of one port: complete frames wait here and leave as an AXI stream."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.net.axis import axis_beat, lanes
from hdl.net.frame_store import FrameStore


def built_word(width: int) -> data.StructLayout:
    """A word of a built frame: ``count`` valid bytes from the lowest; ``answer``: which share of the room it occupies."""
    return data.StructLayout({"data": width, "count": range(width // 8 + 1), "last": 1, "answer": 1})


class PlanePort(wiring.Component):
    """Holds built frames (``depth`` words; the writer looks after room) and sends them one beat a clock.

    While ``up`` is 0 the frames held are thrown away, a ``lost`` pulse each. A frame of which a part has left by then is ended by a beat
    with ``last`` and ``bad``, so that the stream stays whole, and counts as lost; the beat that the MAC has been offered stays until it
    is taken. ``popped`` tells that a word of room is free again, ``popped_answer`` of which share. ``tx_frame`` pulses for each whole
    frame that left; ``tx_bytes`` is the number of bytes that left in a clock.
    """

    def __init__(self, width: int, depth: int) -> None:
        self.width = width
        self.depth = depth
        super().__init__({
            "w_valid": In(1), "w_data": In(built_word(width)), "abort": In(1), "up": In(1),
            "tx": Out(stream.Signature(axis_beat(width))),
            "popped": Out(1), "popped_answer": Out(1), "lost": Out(1), "tx_frame": Out(1), "tx_bytes": Out(16),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        nbytes = self.width // 8
        m.submodules.store = store = FrameStore(built_word(self.width), self.depth)
        word, tx = store.r, self.tx
        m.d.comb += [
            store.w_valid.eq(self.w_valid),
            store.w_data.eq(self.w_data),
            store.commit.eq(self.w_valid & self.w_data.last),
            store.abort.eq(self.abort),
        ]
        mid = Signal()  # a part of the frame at hand has been offered, its end not
        cutting = Signal()  # the rest of the frame at hand is thrown away
        unended = Signal()  # the stream waits for the beat that ends a cut frame
        free = ~tx.valid | tx.ready
        away = cutting | ~self.up
        m.d.comb += word.ready.eq(away | (free & ~unended))
        taken = word.valid & word.ready
        with m.If(tx.ready):
            m.d.sync += tx.valid.eq(0)
        with m.If(taken):
            m.d.sync += [cutting.eq(away & ~word.payload.last), mid.eq(~away & ~word.payload.last)]
            with m.If(away & mid):
                m.d.sync += unended.eq(1)
        with m.If(free & unended):
            m.d.sync += [
                unended.eq(0),
                tx.valid.eq(1),
                tx.payload.data.eq(0),
                tx.payload.keep.eq(1),
                tx.payload.last.eq(1),
                tx.payload.bad.eq(1),
            ]
        with m.Elif(taken & ~away):
            m.d.sync += [
                tx.valid.eq(1),
                tx.payload.data.eq(word.payload.data),
                tx.payload.keep.eq(lanes(word.payload.count, nbytes)),
                tx.payload.last.eq(word.payload.last),
                tx.payload.bad.eq(0),
            ]
        sent = tx.valid & tx.ready
        keep = tx.payload.keep
        count = sum((keep[lane] for lane in range(1, nbytes)), keep[0])
        m.d.sync += [
            self.popped.eq(taken),
            self.popped_answer.eq(word.payload.answer),
            self.lost.eq(taken & away & word.payload.last),
            self.tx_frame.eq(sent & tx.payload.last & ~tx.payload.bad),
            self.tx_bytes.eq(Mux(sent, count, Const(0))),
        ]
        return m
