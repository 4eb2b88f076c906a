"""A buffer of words that belong to frames: a frame becomes readable, or vanishes, as a whole."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

BLOCK_DEPTH = 512  # words of a block RAM at its widest, the unit in which depth costs something


def block_depth(words: int) -> int:
    """``words`` rounded up to whole block RAMs."""
    return -(-words // BLOCK_DEPTH) * BLOCK_DEPTH


class FrameStore(wiring.Component):
    """Words in, in one write a clock; ``commit`` releases everything written since the last commit, this clock's word included, and
    ``abort`` forgets it.

    Whoever writes looks after room: ``level`` is the number of words held, counted after the clock in which they come or go. Reads
    sustain one word a clock; a committed word appears on ``r`` two clocks later.
    """

    def __init__(self, layout: data.StructLayout, depth: int) -> None:
        if depth < 2:
            raise ValueError(f"a frame store of {depth} words: at least 2 are needed")
        self.depth = depth
        super().__init__({
            "w_valid": In(1), "w_data": In(layout), "commit": In(1), "abort": In(1), "level": Out(range(depth + 1)),
            "r": Out(stream.Signature(layout)),
        })  # fmt: skip

    def _next(self, pointer: Value) -> Value:
        return Mux(pointer == self.depth - 1, 0, pointer + 1)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.w_data.shape(), depth=self.depth, init=[])
        write, read = memory.write_port(), memory.read_port()
        wr, start, rd = (Signal(range(self.depth), name=name) for name in ("wr", "start", "rd"))
        pending = Signal(range(self.depth + 1))  # written and not committed
        ready = Signal(range(self.depth + 1))  # committed and not read
        behind = Signal(range(self.depth))
        fetch = Signal()
        added = Signal(range(self.depth + 1))
        m.d.comb += [
            write.addr.eq(wr),
            write.data.eq(self.w_data),
            write.en.eq(self.w_valid),
            behind.eq(Mux(self.w_valid, self._next(wr), wr)),
            added.eq(pending + self.w_valid),
            self.level.eq(pending + ready),
            read.addr.eq(rd),
            read.en.eq(fetch),
            fetch.eq((ready != 0) & (~self.r.valid | self.r.ready)),
            self.r.payload.eq(read.data),
        ]
        with m.If(self.abort):
            m.d.sync += [wr.eq(start), pending.eq(0)]
        with m.Elif(self.commit):
            m.d.sync += [wr.eq(behind), start.eq(behind), pending.eq(0)]
        with m.Else():
            m.d.sync += [wr.eq(behind), pending.eq(added)]
        m.d.sync += ready.eq(ready + Mux(self.commit & ~self.abort, added, 0) - fetch)
        with m.If(fetch):
            m.d.sync += [rd.eq(self._next(rd)), self.r.valid.eq(1)]
        with m.Elif(self.r.ready):
            m.d.sync += self.r.valid.eq(0)
        return m
