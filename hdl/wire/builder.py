"""From descriptors and payload to frames: headers, payload rotated behind them, pad, ICRC; one word a clock."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.layouts import GLOBAL_CONFIG, Layouts
from hdl.net.axis import lanes, masked
from hdl.params import Params
from hdl.wire.assemble import PEER, Assemble, job
from hdl.wire.config import cfg_write
from hdl.wire.icrc import Icrc, IcrcValue
from hdl.wire.plane_port import built_word
from model.spec import Opcode

BODY_BITS = 14  # bits of byte counts of a frame


def read_beat(width: int) -> data.StructLayout:
    """A word of payload read from the host; ``error`` counts on the last one."""
    return data.StructLayout({"data": width, "last": 1, "error": 1})


class Builder(wiring.Component):
    """Builds one frame after the other into the ports' stores.

    ``job`` is taken in the clock in which ``job_valid`` and ``job_take`` are set; which job is offered may change until then. The next
    job's headers are prepared while a frame is written. A frame starts once its first payload word is there; that clock's tick (0 becomes
    1) is its timestamp. Room must have been reserved: ``w_valid`` [plane] writes always succeed. When a job is finished, ``back`` returns
    the part of its reservation that was not written.

    A job of a port that is down sends nothing: its payload is taken and dropped, ``lost`` pulses. Payload that ends with ``error``, or
    not where the descriptor says, takes the frame back (``abort``). Each job of the requestor gives one ``depart`` when its frame is
    complete or given up.
    """

    def __init__(self, params: Params) -> None:
        self.p = params
        self.width = params.data_width
        planes = params.planes
        self.job_layout = job(params)
        super().__init__({
            "job": In(self.job_layout), "job_valid": In(1), "job_take": Out(1),
            "payload": In(stream.Signature(read_beat(self.width))),
            "cfg_wr": In(cfg_write(params)), "global_config": In(GLOBAL_CONFIG), "tick": In(32), "up": In(planes),
            "depart": Out(stream.Signature(Layouts(params).depart)),
            "w_valid": Out(planes), "w_data": Out(built_word(self.width)), "abort": Out(planes),
            "back": Out(data.StructLayout({"valid": 1, "plane": params.plane_bits, "answer": 1, "words": 10})),
            "lost": Out(planes),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.p
        nbytes = self.width // 8
        lane_bits = (nbytes - 1).bit_length()

        # --- preparation: configuration and lengths of the next frame ------------------------------------------------------------------
        m.submodules.peers = peers = Memory(shape=PEER, depth=p.qps, init=[])
        write, read = peers.write_port(), peers.read_port()
        m.d.comb += [write.en.eq(self.cfg_wr.valid), write.addr.eq(self.cfg_wr.qp)]
        m.d.comb += [write.data[name].eq(self.cfg_wr.data[name]) for name in PEER.members]
        m.submodules.assemble = assemble = Assemble(p)
        coming = Signal(self.job_layout)
        have = Signal()
        start = Signal()  # the prepared frame begins, or is given up
        m.d.comb += [
            self.job_take.eq(~have & self.job_valid),
            read.en.eq(self.job_take),
            read.addr.eq(self.job.tx.qp),
            assemble.begin.eq(self.job_take),
            assemble.tx.eq(coming.tx),
            assemble.peer.eq(read.data),
            assemble.global_config.eq(self.global_config),
        ]
        with m.If(self.job_take):
            m.d.sync += [have.eq(1), coming.eq(self.job)]
        with m.Elif(start):
            m.d.sync += have.eq(0)
        stamp = Signal(16)
        m.d.comb += [stamp.eq(Mux(self.tick[:16] == 0, 1, self.tick[:16])), assemble.timestamp.eq(stamp)]

        # --- the frame that is being written -------------------------------------------------------------------------------------------
        m.submodules.icrc = icrc = Icrc(self.width)
        kept = -(-assemble.octets // nbytes)
        headers = Signal(8 * nbytes * kept)  # the lowest word is next; behind the headers it holds the bytes carried over
        whole = Signal(range(kept + 1))  # words of headers alone that are left
        offset = Signal(lane_bits)  # where the payload starts in its first word
        plen_left = Signal(13)
        body_left = Signal(BODY_BITS)  # headers, payload and pad not yet written
        index = Signal(len(icrc.index))
        ipv4, answer = Signal(), Signal()
        plane = Signal(p.plane_bits)
        granted = Signal(10)  # words of room reserved
        unused = Signal(10)  # those not yet written
        note = Signal(self.depart.payload.shape())
        pay = self.payload
        s1 = Signal(self._beat(len(index)))
        m.d.sync += [s1.valid.eq(0), self.back.valid.eq(0), self.lost.eq(0)]
        with m.If(self.depart.ready):
            m.d.sync += self.depart.valid.eq(0)

        def finish(words: ValueLike, read_error: ValueLike = 0) -> None:
            """Ends the job: ``words`` of room come back, and a requestor's frame departs. An answer leaves a waiting departure alone."""
            m.d.sync += [
                self.back.valid.eq(1),
                self.back.plane.eq(plane),
                self.back.answer.eq(answer),
                self.back.words.eq(words),
            ]
            with m.If(~answer):
                m.d.sync += [
                    self.depart.valid.eq(1),
                    self.depart.payload.eq(note),
                    self.depart.payload.read_error.eq(read_error),
                    self.depart.payload.dropped.eq(note.dropped & ~read_error),
                ]

        in_payload = Signal()
        final = Signal()  # this payload word is the last one
        last = Signal()  # this word ends headers, payload and pad
        spill = Signal()  # the ICRC needs one more word
        ends_wrong = Signal()
        m.d.comb += [
            in_payload.eq((whole == 0) & (plen_left != 0)),
            final.eq(plen_left <= nbytes),
            last.eq(body_left <= nbytes),
            spill.eq(body_left + 4 > nbytes),
            ends_wrong.eq(in_payload & Mux(pay.payload.last, pay.payload.error | ~final, final)),
        ]
        # The payload word behind the bytes carried over; bytes behind the payload's end are pad, so zero. Headers end at 2 modulo 4.
        clean = masked(pay.payload.data, Mux(final, lanes(plen_left[: lane_bits + 1], nbytes), (1 << nbytes) - 1))
        shifted = Signal(2 * self.width)
        with m.If(in_payload):
            with m.Switch(offset):
                for lane in range(2, nbytes, 4):
                    with m.Case(lane):
                        m.d.comb += shifted.eq(clean << 8 * lane)
        here = (self.up >> coming.tx.plane)[0] & ~coming.void
        with m.FSM(name="write"):
            with m.State("idle"):
                m.d.comb += start.eq(
                    have & assemble.ready & (coming.answer | ~self.depart.valid) & ((coming.tx.plen == 0) | pay.valid)
                )
                with m.If(start):
                    m.d.sync += [
                        headers.eq(assemble.headers),
                        whole.eq(assemble.length >> lane_bits),
                        offset.eq(assemble.length[:lane_bits]),
                        plen_left.eq(coming.tx.plen),
                        body_left.eq(assemble.length + coming.tx.plen + assemble.pad),
                        index.eq(0),
                        ipv4.eq(read.data.ipv4),
                        answer.eq(coming.answer),
                        plane.eq(coming.tx.plane),
                        granted.eq(coming.reserved),
                        unused.eq(coming.reserved),
                        note.qp.eq(coming.tx.qp),
                        note.probe.eq(coming.tx.opcode == Opcode.PROBE),
                        note.psn.eq(coming.tx.psn),
                        note.evi.eq(coming.tx.evi),
                        note.send_tick.eq(coming.tx.send_tick),
                        note.tick.eq(stamp),
                        note.dropped.eq(~here),
                    ]
                    with m.If(here):
                        m.next = "write"
                    with m.Else():
                        m.d.sync += self.lost.eq(Mux(coming.void, 0, 1 << coming.tx.plane))
                        with m.If(coming.tx.plen == 0):
                            m.next = "give up"
                        with m.Else():
                            m.next = "drain"
            with m.State("write"):
                m.d.comb += pay.ready.eq(in_payload)
                with m.If(~in_payload | pay.valid):
                    m.d.sync += [
                        s1.valid.eq(1),
                        s1.data.eq(headers[: self.width] | shifted[: self.width]),
                        s1.count.eq(Mux(last, body_left[: lane_bits + 1], nbytes)),
                        s1.end.eq(last),
                        s1.tail.eq(0),
                        s1.abort.eq(ends_wrong),
                        body_left.eq(body_left - nbytes),
                        unused.eq(unused - 1),
                        index.eq(index + ~index.all()),
                    ]
                    with m.If(whole != 0):
                        m.d.sync += [whole.eq(whole - 1), headers.eq(headers >> self.width)]
                    with m.Else():
                        m.d.sync += headers.eq(shifted[self.width :])
                    with m.If(in_payload):
                        m.d.sync += plen_left.eq(Mux(final, 0, plen_left - nbytes))
                    with m.If(ends_wrong & pay.payload.last):
                        finish(granted, 1)
                        m.next = "idle"
                    with m.Elif(ends_wrong):
                        m.next = "drain broken"
                    with m.Elif(last & spill):
                        m.next = "tail"
                    with m.Elif(last):
                        finish(unused - 1)
                        m.next = "idle"
            with m.State("tail"):
                m.d.sync += [s1.valid.eq(1), s1.tail.eq(1), s1.abort.eq(0)]
                finish(unused - 1)
                m.next = "idle"
            with m.State("drain"):
                m.d.comb += pay.ready.eq(1)
                with m.If(pay.valid & pay.payload.last):
                    finish(granted, pay.payload.error)
                    m.next = "idle"
            with m.State("drain broken"):
                m.d.comb += pay.ready.eq(1)
                with m.If(pay.valid & pay.payload.last):
                    finish(granted, 1)
                    m.next = "idle"
            with m.State("give up"):
                finish(granted)
                m.next = "idle"
        m.d.sync += [s1.index.eq(index), s1.ipv4.eq(ipv4), s1.plane.eq(plane), s1.answer.eq(answer)]
        self._close(m, icrc, s1)
        return m

    def _beat(self, index_bits: int) -> data.StructLayout:
        """A word on its way through the ICRC. ``count``: bytes before the ICRC; ``end``: the ICRC follows them; ``tail``: only the ICRC's rest."""
        return data.StructLayout({
            "valid": 1, "data": self.width, "index": index_bits, "count": range(self.width // 8 + 1), "end": 1, "tail": 1, "abort": 1,
            "ipv4": 1, "answer": 1, "plane": self.p.plane_bits,
        })  # fmt: skip

    def _close(self, m: Module, icrc: Icrc, s1: data.View) -> None:
        """Second and third stage: the ICRC of what has passed is put behind the last word, and words go to their port."""
        nbytes = self.width // 8
        m.submodules.icrc_value = value = IcrcValue(self.width)
        m.d.comb += [
            icrc.valid.eq(s1.valid & ~s1.tail & ~s1.abort),
            icrc.index.eq(s1.index),
            icrc.ipv4.eq(s1.ipv4),
            icrc.data.eq(s1.data),
            icrc.count.eq(s1.count),
            value.state.eq(icrc.state),
            value.tail.eq(icrc.tail),
        ]
        s2 = Signal(s1.shape())
        m.d.sync += s2.eq(s1)
        word = Signal(self.width)
        count = Signal(range(nbytes + 1))
        m.d.comb += [word.eq(s2.data), count.eq(nbytes)]
        with m.If(s2.tail):
            # The body ends at 2 modulo 4, so what is left over is always half an ICRC.
            m.d.comb += [word.eq(value.value[16:]), count.eq(2)]
        with m.Elif(s2.end):
            with m.Switch(s2.count):
                for at in range(2, nbytes, 4):
                    with m.Case(at):
                        m.d.comb += [word.eq((s2.data | (value.value << 8 * at))[: self.width]), count.eq(min(nbytes, at + 4))]
        for n in range(self.p.planes):
            mine = s2.valid & (s2.plane == n)
            m.d.sync += [self.w_valid[n].eq(mine & ~s2.abort), self.abort[n].eq(mine & s2.abort)]
        m.d.sync += [
            self.w_data.data.eq(word),
            self.w_data.count.eq(count),
            self.w_data.last.eq(s2.tail | (s2.end & (s2.count + 4 <= nbytes))),
            self.w_data.answer.eq(s2.answer),
        ]
