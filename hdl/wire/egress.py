"""The send path: descriptors of both owners to frames on the planes."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.host.registers import drop_pulse
from hdl.layouts import GLOBAL_CONFIG, Layouts
from hdl.net.axis import axis_beat
from hdl.net.frame_store import block_depth
from hdl.params import Params
from hdl.wire.builder import Builder, read_beat
from hdl.wire.config import cfg_write
from hdl.wire.headers import EXT_AT, MAX_HEADERS
from hdl.wire.parser import need_equal_widths
from hdl.wire.plane_port import PlanePort
from model import spec
from model.spec import Drop, Opcode, Syndrome

ANSWERS = 16  # answers of the longest kind for which each port keeps room of their own
QUEUE = 4  # requestor descriptors accepted ahead of the builder, as many as the DMA reads ahead
STAMPED = 8  # ACKs and NAKs that wait for payload writes


class Egress(wiring.Component):
    """Descriptors and payload to frames, one stream a plane.

    ``tx_req`` (data, probes) and ``tx_rsp`` (answers, which go first) are accepted when the frame's room in its port is reserved, so an
    accepted frame waits for no other plane. ``room_req`` / ``room_rsp``, bit n: port n has room for one more longest frame of that owner;
    falls in the clock behind the acceptance that used it up. The two owners have shares of their own. ``payload``: one packet of words
    per data frame in the order of ``tx_req``, from bit 0; ``error`` on the last word = host memory failed.

    Answers with ``wr_stamp`` wait until ``wr_done`` has reached the ``wr_issued`` of their acceptance; others pass them. An ACK held for
    a QP in ``failed`` is discarded: one of the writes it stands for failed. ``depart``: exactly one per ``tx_req``, in order, when its
    frame is complete in the port's store, or given up. ``tx_dropped[n]`` pulses for each frame lost because port n is down, ``drop``
    counts them for the NIC; ``tx_frame[n]``, ``tx_bytes[n]`` what left.
    """

    def __init__(self, params: Params) -> None:
        need_equal_widths(params, "egress")
        self.p = params
        self.layouts = Layouts(params)
        self.width = params.data_width
        nbytes = self.width // 8
        self.data_words = -(-spec.MAX_FRAME // nbytes)  # of the longest data frame
        self.answer_words = -(-(MAX_HEADERS + spec.ICRC_BYTES) // nbytes)
        self.answer_share = ANSWERS * self.answer_words
        self.depth = block_depth(2 * self.data_words + self.answer_share)
        planes = params.planes
        tx = stream.Signature(self.layouts.tx)
        super().__init__({
            "tx_req": In(tx), "tx_rsp": In(tx), "payload": In(stream.Signature(read_beat(self.width))),
            "cfg_wr": In(cfg_write(params)), "global_config": In(GLOBAL_CONFIG), "tick": In(32), "up": In(planes),
            "wr_issued": In(16), "wr_done": In(16), "failed": In(params.qps),
            "tx": Out(stream.Signature(axis_beat(params.port_width))).array(planes),
            "room_req": Out(planes), "room_rsp": Out(planes), "depart": Out(stream.Signature(self.layouts.depart)),
            "drop": Out(drop_pulse()), "tx_dropped": Out(1).array(planes), "tx_frame": Out(1).array(planes), "tx_bytes": Out(16).array(planes),
        })  # fmt: skip

    def _words(self, tx: Value) -> Value:
        """Words of room that a requestor's frame needs at most (IPv6)."""
        fixed = EXT_AT[False] + spec.MAX_DATA_EXTENSION_BYTES + spec.ICRC_BYTES + 3 + self.width // 8 - 1
        return (tx.plen + fixed) >> (self.width // 8 - 1).bit_length()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.p
        m.submodules.builder = builder = Builder(p)
        wiring.connect(m, wiring.flipped(self.payload), builder.payload)
        wiring.connect(m, builder.depart, wiring.flipped(self.depart))
        m.d.comb += [builder.cfg_wr.eq(self.cfg_wr), builder.global_config.eq(self.global_config), builder.tick.eq(self.tick), builder.up.eq(self.up)]

        # --- acceptance: a place in a queue and room in the port -------------------------------------------------------------------------
        stamped_layout = data.StructLayout({"tx": self.layouts.tx, "stamp": 16})
        m.submodules.requests = requests = SyncFIFOBuffered(width=self.layouts.tx.size, depth=QUEUE)
        m.submodules.answers = answers = SyncFIFOBuffered(width=self.layouts.tx.size, depth=QUEUE)
        m.submodules.stamped = stamped = SyncFIFOBuffered(width=stamped_layout.size, depth=STAMPED)
        stamped_in = Signal(stamped_layout)
        req, rsp = self.tx_req, self.tx_rsp
        took_req, took_rsp = Signal(), Signal()
        m.d.comb += [
            req.ready.eq(requests.w_rdy & (self.room_req >> req.payload.plane)[0]),
            rsp.ready.eq(Mux(rsp.payload.wr_stamp, stamped.w_rdy, answers.w_rdy) & (self.room_rsp >> rsp.payload.plane)[0]),
            took_req.eq(req.valid & req.ready),
            took_rsp.eq(rsp.valid & rsp.ready),
            requests.w_data.eq(req.payload),
            requests.w_en.eq(took_req),
            answers.w_data.eq(rsp.payload),
            answers.w_en.eq(took_rsp & ~rsp.payload.wr_stamp),
            stamped_in.tx.eq(rsp.payload),
            stamped_in.stamp.eq(self.wr_issued),
            stamped.w_data.eq(stamped_in),
            stamped.w_en.eq(took_rsp & rsp.payload.wr_stamp),
        ]

        # --- choice of the next frame: ACKs whose writes are done, then SACK and NACK, then data -------------------------------------------
        held = stamped_layout(stamped.r_data)
        answered = Signal()
        request = self.layouts.tx(requests.r_data)
        job, take = builder.job, builder.job_take
        m.d.comb += [
            answered.eq(stamped.r_rdy & ~(self.wr_done - held.stamp)[15]),
            builder.job_valid.eq(answered | answers.r_rdy | requests.r_rdy),
        ]
        with m.If(answered):
            refused = (held.tx.opcode == Opcode.ACK) & (held.tx.ext.ack.syndrome == Syndrome.ACK) & (self.failed >> held.tx.qp)[0]
            m.d.comb += [job.tx.eq(held.tx), job.answer.eq(1), job.reserved.eq(self.answer_words), job.void.eq(refused), stamped.r_en.eq(take)]
        with m.Elif(answers.r_rdy):
            m.d.comb += [job.tx.eq(self.layouts.tx(answers.r_data)), job.answer.eq(1), job.reserved.eq(self.answer_words), answers.r_en.eq(take)]
        with m.Else():
            m.d.comb += [job.tx.eq(request), job.reserved.eq(self._words(request)), requests.r_en.eq(take)]

        # --- ports, their room, and what is lost -------------------------------------------------------------------------------------------
        waiting = Signal(p.planes)  # ports with losses to report
        report = Signal(p.planes)  # the one that does, lowest first
        m.d.comb += report.eq(waiting & -waiting)
        m.d.sync += [self.drop.valid.eq(waiting != 0), self.drop.cause.eq(Drop.PORT_DOWN)]
        for n in range(p.planes):
            m.submodules[f"port{n}"] = port = PlanePort(self.width, self.depth)
            wiring.connect(m, port.tx, wiring.flipped(self.tx[n]))
            m.d.comb += [
                port.w_valid.eq(builder.w_valid[n]),
                port.w_data.eq(builder.w_data),
                port.abort.eq(builder.abort[n]),
                port.up.eq(self.up[n]),
                self.tx_frame[n].eq(port.tx_frame),
                self.tx_bytes[n].eq(port.tx_bytes),
            ]
            share = {0: self.depth - self.answer_share, 1: self.answer_share}
            longest = {0: self.data_words, 1: self.answer_words}
            used = {0: took_req & (req.payload.plane == n), 1: took_rsp & (rsp.payload.plane == n)}
            words = {0: self._words(req.payload), 1: self.answer_words}
            for answer, room in ((0, self.room_req), (1, self.room_rsp)):
                free = Signal(range(self.depth + 1), init=share[answer], name=f"free_{'rsp' if answer else 'req'}{n}")
                returned = builder.back.valid & (builder.back.plane == n) & (builder.back.answer == answer)
                popped = port.popped & (port.popped_answer == answer)
                m.d.sync += free.eq(free + popped + Mux(returned, builder.back.words, 0) - Mux(used[answer], words[answer], 0))
                m.d.comb += room[n].eq(free >= longest[answer])
            losses = Signal(range(self.depth + 1), name=f"losses{n}")
            m.d.sync += [losses.eq(losses + port.lost + builder.lost[n] - report[n]), self.tx_dropped[n].eq(report[n])]
            m.d.comb += waiting[n].eq(losses != 0)
        return m
