"""Completion queue of the NIC: merges the owners' completions, holds them until their data is in memory, and never overflows."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.layouts import Layouts
from hdl.params import Params
from model.spec import WcStatus


class Completions(wiring.Component):
    """A queue of ``cq_depth`` work completions read by the host.

    A responder completion waits until every payload write issued before it is answered (``write_issued``, ``write_done``: DmaWrite's counters;
    ``write_pending``: a verdict is on its way to it), so nobody sees a completion before its data. If one of those writes failed, the completion of
    that QP says LOCAL_MEMORY (``failed``: one bit a QP). Overflow cannot happen: ``reserve`` is pulsed for every accepted post, whose
    completion then has its place; ``room`` tells whether one more may be accepted.
    """

    def __init__(self, params: Params) -> None:
        self.p = params
        layout = Layouts(params).completion
        super().__init__({
            "from_requestor": In(stream.Signature(layout)), "from_responder": In(stream.Signature(layout)),
            "write_issued": In(16), "write_done": In(16), "write_pending": In(1), "failed": In(params.qps),
            "reserve": In(1), "room": Out(1),
            "head": Out(layout), "head_valid": Out(1), "pop": In(1), "count": Out(range(params.cq_depth + 2)),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layout = Layouts(self.p).completion
        m.submodules.queue = queue = SyncFIFOBuffered(width=layout.size, depth=self.p.cq_depth)
        head = data.View(layout, queue.r_data)
        m.d.comb += [self.head.eq(head), self.head_valid.eq(queue.r_rdy), queue.r_en.eq(self.pop), self.count.eq(queue.level)]

        # A place stays reserved from the post until the host has taken the completion.
        reserved = Signal(range(self.p.cq_depth + 1))
        popped = self.pop & queue.r_rdy
        m.d.sync += reserved.eq(reserved + self.reserve - popped)
        m.d.comb += self.room.eq(reserved < self.p.cq_depth)

        # One responder completion at a time waits behind a stamp of the write counter.
        held = Signal(layout)
        held_valid = Signal()
        stamp = Signal(16)
        caught_up = Signal()
        m.d.comb += [
            caught_up.eq((self.write_done - stamp)[:16].as_signed() >= 0),
            self.from_responder.ready.eq(~held_valid & ~self.write_pending),
        ]
        with m.If(self.from_responder.valid & self.from_responder.ready):
            m.d.sync += [held.eq(self.from_responder.payload), held_valid.eq(1), stamp.eq(self.write_issued)]
        final = Signal(layout)
        m.d.comb += final.eq(held)
        bad = (self.failed >> held.qp)[0]
        m.d.comb += final.status.eq(Mux(bad & (held.status == WcStatus.SUCCESS), WcStatus.LOCAL_MEMORY, held.status))
        with m.If(held_valid & caught_up & queue.w_rdy):
            m.d.comb += [queue.w_data.eq(final), queue.w_en.eq(1)]
            m.d.sync += held_valid.eq(0)
        with m.Elif(queue.w_rdy):
            m.d.comb += [queue.w_data.eq(self.from_requestor.payload), queue.w_en.eq(self.from_requestor.valid), self.from_requestor.ready.eq(1)]
        return m
