"""Payload write: a stream that starts at bit 0 to host memory at any byte address."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hdl.host.axi import BURST_INCR, MAX_BURST_BEATS, RESP_OKAY, axi4_write, burst_length
from hdl.layouts import Layouts
from hdl.params import Params


class DmaWrite(wiring.Component):
    """Executes verdicts in order: writes the next payload of the stream to ``addr``, or lets it go.

    Verdicts with ``plen`` 0 have no payload in the stream. ``issued`` counts the writing verdicts taken, ``done`` those whose every
    response has come, both modulo 2^16; at most ``outstanding`` are between. A response with an error gives one ``error`` item {qp}, before
    ``done`` counts that verdict.
    """

    def __init__(self, params: Params, *, outstanding: int = 16) -> None:
        self.p = params
        self.outstanding = outstanding
        word = data.StructLayout({"data": params.data_width, "last": 1})
        super().__init__({
            "verdict": In(stream.Signature(Layouts(params).verdict)),
            "payload": In(stream.Signature(word)),
            "axi": Out(axi4_write(params.data_width, params.addr_width)),
            "error": Out(stream.Signature(data.StructLayout({"qp": params.qp_bits}))),
            "issued": Out(16), "done": Out(16),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.p.data_width
        nbytes = width // 8
        shift = (nbytes - 1).bit_length()
        axi = self.axi
        ver = self.verdict.payload

        # Every burst leaves a note for its response: whose it is and whether it ends its verdict.
        note_layout = data.StructLayout({"qp": self.p.qp_bits, "last": 1})
        m.submodules.notes = notes = SyncFIFO(width=note_layout.size, depth=4 * self.outstanding)
        note = Signal(note_layout)
        m.d.comb += notes.w_data.eq(note)

        addr = Signal(self.p.addr_width)  # of the next burst, aligned to a beat
        at = Signal(shift)  # offset of the first byte in the first beat
        qp = Signal(self.p.qp_bits)
        beats = Signal(13)  # beats not yet in a burst
        left = Signal(13)  # payload bytes not yet in a beat
        first = Signal()  # the next beat is the first one of the verdict
        words = Signal(13)  # payload words still to take
        held = Signal(width)  # last word taken
        in_burst = Signal(range(MAX_BURST_BEATS + 1))  # beats left in the running burst
        burst = burst_length(m, addr, beats, nbytes)
        m.d.comb += [axi.awid.eq(0), axi.awsize.eq(shift), axi.awburst.eq(BURST_INCR)]
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        w_free = ~axi.wvalid | axi.wready
        with m.If(axi.wready):
            m.d.sync += axi.wvalid.eq(0)

        offset = ver.addr[:shift]
        with m.FSM():
            with m.State("idle"):
                # A bound on verdicts in flight keeps the 16-bit counters unambiguous.
                m.d.comb += self.verdict.ready.eq((self.issued - self.done)[:16] < self.outstanding)
                with m.If(self.verdict.valid & self.verdict.ready):
                    m.d.sync += [
                        addr.eq(Cat(Const(0, shift), ver.addr[shift:])),
                        at.eq(offset),
                        qp.eq(ver.qp),
                        beats.eq((offset + ver.plen + (nbytes - 1)) >> shift),
                        left.eq(ver.plen),
                        words.eq((ver.plen + (nbytes - 1)) >> shift),
                        first.eq(1),
                        held.eq(0),
                    ]
                    with m.If(ver.plen == 0):
                        m.next = "idle"
                    with m.Elif(ver.write):
                        m.d.sync += self.issued.eq(self.issued + 1)
                        m.next = "burst"
                    with m.Else():
                        m.next = "discard"
            with m.State("discard"):
                m.d.comb += self.payload.ready.eq(1)
                with m.If(self.payload.valid & self.payload.payload.last):
                    m.next = "idle"
            with m.State("burst"):
                # The address may leave before, with or after its data; the next burst waits for both.
                m.d.comb += [note.qp.eq(qp), note.last.eq(beats == burst), notes.w_en.eq(~axi.awvalid)]
                with m.If(~axi.awvalid & notes.w_rdy):
                    m.d.sync += [
                        axi.awvalid.eq(1),
                        axi.awaddr.eq(addr),
                        axi.awlen.eq(burst - 1),
                        addr.eq(addr + (burst << shift)),
                        beats.eq(beats - burst),
                        in_burst.eq(burst),
                    ]
                    m.next = "data"
            with m.State("data"):
                need = words != 0  # the last beat of an unaligned payload may only carry held bytes
                go = w_free & (self.payload.valid | ~need)
                m.d.comb += self.payload.ready.eq(w_free & need)
                with m.If(go):
                    now = Mux(need, self.payload.payload.data, 0)
                    room = Mux(first, nbytes - at, nbytes)  # bytes that this beat can carry
                    low = Mux(first, at, 0)
                    full = left >= room
                    high = Mux(full, nbytes, (low + left)[: shift + 1])  # first byte lane that is not written
                    lanes = [(lane >= low) & (lane < high) for lane in range(nbytes)]
                    m.d.sync += [
                        axi.wvalid.eq(1),
                        axi.wdata.eq((Cat(held, now) >> Mux(at == 0, width, ((nbytes - at) << 3).as_unsigned()))[:width]),
                        axi.wstrb.eq(Cat(*lanes)),
                        axi.wlast.eq(in_burst == 1),
                        in_burst.eq(in_burst - 1),
                        left.eq(Mux(full, left - room, 0)),
                        held.eq(now),
                        first.eq(0),
                    ]
                    with m.If(need):
                        m.d.sync += words.eq(words - 1)
                    with m.If(in_burst == 1):
                        with m.If(beats == 0):
                            m.next = "idle"
                        with m.Else():
                            m.next = "burst"

        # --- responses, in order ----------------------------------------------------------------------------------------------------------
        got = data.View(note_layout, notes.r_data)
        with m.If(self.error.ready):
            m.d.sync += self.error.valid.eq(0)
        m.d.comb += axi.bready.eq(notes.r_rdy & ~self.error.valid)
        with m.If(axi.bvalid & axi.bready):
            m.d.comb += notes.r_en.eq(1)
            with m.If(got.last):
                m.d.sync += self.done.eq(self.done + 1)
            with m.If(axi.bresp != RESP_OKAY):
                m.d.sync += [self.error.valid.eq(1), self.error.payload.qp.eq(got.qp)]
        return m
