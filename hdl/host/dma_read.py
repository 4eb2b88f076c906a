"""Payload read: host memory at any byte address to a stream that starts at bit 0."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hdl.host.axi import BURST_INCR, RESP_OKAY, axi4_read, burst_length
from hdl.params import Params

LENGTH_BITS = 13  # 1..4096 bytes


def read_request(addr_width: int) -> data.StructLayout:
    """Bytes to read: host address (any alignment) and length, 1 to 4096."""
    return data.StructLayout({"addr": addr_width, "length": LENGTH_BITS})


def payload_word(data_width: int) -> data.StructLayout:
    """A word of payload; ``error`` counts on the last word only: some beat was answered with an error."""
    return data.StructLayout({"data": data_width, "last": 1, "error": 1})


class DmaRead(wiring.Component):
    """Reads one request after the other and delivers ceil(length / bytes) words each, bytes beyond the length zero.

    Bursts have at most 256 beats and never cross 4 KiB. Addresses are issued ahead of the data by up to ``ahead`` requests. An error answer ends that request
    with ``error`` set on its last word; the number of words does not change, so nothing behind it is disturbed.
    """

    def __init__(self, params: Params, *, ahead: int = 4) -> None:
        self.p = params
        self.ahead = ahead
        super().__init__({
            "request": In(stream.Signature(read_request(params.addr_width))),
            "payload": Out(stream.Signature(payload_word(params.data_width))),
            "axi": Out(axi4_read(params.data_width, params.addr_width)),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.p.data_width
        nbytes = width // 8
        shift = (nbytes - 1).bit_length()
        axi = self.axi

        # --- address side: one request becomes bursts -----------------------------------------------------------------------------
        info_layout = data.StructLayout({"offset": shift, "length": LENGTH_BITS})
        m.submodules.info = info = SyncFIFO(width=info_layout.size, depth=self.ahead)
        addr = Signal(self.p.addr_width)  # aligned to a beat
        beats = Signal(LENGTH_BITS)  # still to ask for
        burst = burst_length(m, addr, beats, nbytes)
        offset = self.request.payload.addr[:shift]
        first = Signal(info_layout)
        m.d.comb += [first.offset.eq(offset), first.length.eq(self.request.payload.length), info.w_data.eq(first)]
        ar_free = ~axi.arvalid | axi.arready
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(beats == 0):
            m.d.comb += [self.request.ready.eq(info.w_rdy), info.w_en.eq(self.request.valid)]
            with m.If(self.request.valid & info.w_rdy):
                m.d.sync += [
                    addr.eq(Cat(Const(0, shift), self.request.payload.addr[shift:])),
                    beats.eq((offset + self.request.payload.length + (nbytes - 1)) >> shift),
                ]
        with m.Elif(ar_free):
            m.d.sync += [
                axi.arvalid.eq(1),
                axi.araddr.eq(addr),
                axi.arlen.eq(burst - 1),
                addr.eq(addr + (burst << shift)),
                beats.eq(beats - burst),
            ]
        m.d.comb += [axi.arid.eq(0), axi.arsize.eq(shift), axi.arburst.eq(BURST_INCR)]

        # --- data side: rotate beats down by the offset ------------------------------------------------------------------------------
        job = data.View(info_layout, info.r_data)
        busy = Signal()
        at = Signal(shift)
        left_in = Signal(LENGTH_BITS)  # beats still to come
        left_out = Signal(LENGTH_BITS)  # bytes still to deliver
        held = Signal(width)
        held_valid = Signal()  # held carries bytes of the word that is delivered next
        failed = Signal()
        with m.If(~busy):
            m.d.comb += info.r_en.eq(1)
            with m.If(info.r_rdy):
                m.d.sync += [
                    busy.eq(1),
                    at.eq(job.offset),
                    left_in.eq((job.offset + job.length + (nbytes - 1)) >> shift),
                    left_out.eq(job.length),
                    held_valid.eq(0),
                    failed.eq(0),
                ]
        out = self.payload
        out_free = ~out.valid | out.ready
        with m.If(out.ready):
            m.d.sync += out.valid.eq(0)
        prime = (at != 0) & ~held_valid & (left_in != 0)  # first beat of an unaligned request only fills ``held``
        flush = left_in == 0  # all beats are here, the rest sits in ``held``
        take = Signal()  # a beat is taken
        emit = Signal()  # a word is delivered
        m.d.comb += [
            take.eq(busy & axi.rvalid & ~flush & (prime | out_free)),
            emit.eq(busy & out_free & Mux(flush, 1, axi.rvalid & ~prime)),
            axi.rready.eq(busy & ~flush & (prime | out_free)),
        ]
        word = Signal(width)
        beat = Mux(flush, 0, axi.rdata)
        m.d.comb += word.eq(Mux(at == 0, axi.rdata, (Cat(held, beat) >> Cat(Const(0, 3), at))[:width]))
        mask = Signal(width)
        with m.If(left_out >= nbytes):
            m.d.comb += mask.eq(~0)
        with m.Else():
            m.d.comb += mask.eq(~((Const(2**width - 1, width) << Cat(Const(0, 3), left_out[:shift]))[:width]))
        fail_now = failed | (take & (axi.rresp != RESP_OKAY))
        with m.If(take):
            m.d.sync += [held.eq(axi.rdata), held_valid.eq(1), left_in.eq(left_in - 1), failed.eq(fail_now)]
        # An unaligned request may have its last word complete with its last beat; then nothing is left to flush.
        with m.If(emit):
            last = left_out <= nbytes
            m.d.sync += [
                out.valid.eq(1),
                out.payload.data.eq(word & mask),
                out.payload.last.eq(last),
                out.payload.error.eq(fail_now),
                left_out.eq(left_out - nbytes),
            ]
            with m.If(last):
                m.d.sync += busy.eq(0)
        return m
