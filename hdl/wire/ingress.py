"""The receive path: one parser per plane, the check of the QP, and two streams for the two owners of protocol state."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.host.registers import drop_pulse
from hdl.layouts import GLOBAL_CONFIG, QP_CONFIG, Layouts
from hdl.net.axis import axis_beat, payload_beat
from hdl.params import Params
from hdl.wire.config import cfg_write
from hdl.wire.parser import Parser
from model.spec import Opcode

PEER = data.StructLayout({name: QP_CONFIG.members[name] for name in ("pkey", "ipv4", "peer_ip")})
PAYLOADS_AHEAD = 8  # data frames whose descriptor left and whose payload did not
OWNER_DEPTH = 4  # descriptors waiting for each owner


def one_of_planes(address: Value, base: Value, planes: int) -> Value:
    """Whether ``address`` is ``base`` + n for a plane n. Planes are counted in the lowest byte, which never carries."""
    distance = address[:8] - base[:8]
    return (address[8:] == base[8:]) & (distance >= 0) & (distance < planes)


class Ingress(wiring.Component):
    """Frames of all planes to descriptors with the answer of the QP check, and payload.

    Planes are served in rotation, frame by frame; a plane whose next frame is for a busy owner does not hold up the others. SACK, NACK
    and ACK leave on ``rx_req``, data and probes on ``rx_rsp``. A frame of an unknown QP goes to its owner with ``known`` = 0 (and qp,
    addr_ok, pkey_ok 0). ``payload`` follows the order of ``rx_rsp``'s frames with ``plen`` > 0. ``drop[n]`` pulses for frames that plane
    n dropped, ``rx_frame[n]`` for all that ended there, ``rx_bytes[n]`` is the number of bytes taken in a clock. With ``stallable`` =
    False the MACs cannot wait (:class:`hdl.wire.parser.Parser`).
    """

    def __init__(self, params: Params, *, stallable: bool = True) -> None:
        self.p = params
        self.layouts = Layouts(params)
        planes = params.planes
        self.parsers = [Parser(params, stallable=stallable) for _ in range(planes)]
        super().__init__({
            "rx": In(stream.Signature(axis_beat(params.port_width))).array(planes),
            "cfg_wr": In(cfg_write(params)), "global_config": In(GLOBAL_CONFIG),
            "rx_req": Out(stream.Signature(self.layouts.rx)), "rx_rsp": Out(stream.Signature(self.layouts.rx)),
            "payload": Out(stream.Signature(payload_beat(params.data_width))),
            "drop": Out(drop_pulse()).array(planes), "rx_frame": Out(1).array(planes), "rx_bytes": Out(16).array(planes),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.p
        for n, parser in enumerate(self.parsers):
            m.submodules[f"parser{n}"] = parser
            wiring.connect(m, wiring.flipped(self.rx[n]), parser.rx)
            m.d.comb += [
                parser.global_config.eq(self.global_config),
                parser.plane.eq(n),
                self.drop[n].eq(parser.drop),
                self.rx_frame[n].eq(parser.rx_frame),
                self.rx_bytes[n].eq(parser.rx_bytes),
            ]

        m.submodules.peers = peers = Memory(shape=PEER, depth=p.qps, init=[])
        write, read = peers.write_port(), peers.read_port()
        m.d.comb += [write.en.eq(self.cfg_wr.valid), write.addr.eq(self.cfg_wr.qp)]
        m.d.comb += [write.data[name].eq(self.cfg_wr.data[name]) for name in PEER.members]

        m.submodules.to_req = to_req = SyncFIFOBuffered(width=self.layouts.rx.size, depth=OWNER_DEPTH)
        m.submodules.to_rsp = to_rsp = SyncFIFOBuffered(width=self.layouts.rx.size, depth=OWNER_DEPTH)
        m.submodules.order = order = SyncFIFO(width=p.plane_bits, depth=PAYLOADS_AHEAD)

        # --- choice of a plane: one whose frame has a place, in rotation. One frame is between here and the queues.
        willing = Signal(p.planes)
        for n, parser in enumerate(self.parsers):
            desc = parser.desc
            place = Mux(self._is_feedback(desc.payload.opcode), to_req.level < OWNER_DEPTH - 1, (to_rsp.level < OWNER_DEPTH - 1) & order.w_rdy)
            m.d.comb += willing[n].eq(desc.valid & place)
        turn = Signal(p.plane_bits)  # plane that is offered the place first
        chosen = Signal(p.plane_bits)
        with m.Switch(turn):
            for start in range(p.planes):
                with m.Case(start):
                    for n in reversed([(start + i) % p.planes for i in range(p.planes)]):
                        with m.If(willing[n]):
                            m.d.comb += chosen.eq(n)
        taken = Signal()
        frame_in = Signal(self.layouts.rx_frame)
        frame = Signal(self.layouts.rx_frame)
        frame_valid = Signal()
        index = Signal(24)
        with m.Switch(chosen):
            for n, parser in enumerate(self.parsers):
                with m.Case(n):
                    m.d.comb += [frame_in.eq(parser.desc.payload), parser.desc.ready.eq(willing[n])]
        m.d.comb += [
            taken.eq(willing.any()),
            index.eq(frame_in.dest_qp - p.qpn_base),
            read.addr.eq(index[: p.qp_bits]),
            read.en.eq(taken),
            order.w_data.eq(chosen),
            order.w_en.eq(taken & (frame_in.plen != 0)),
        ]
        known = Signal()
        qp = Signal(p.qp_bits)
        m.d.sync += frame_valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                frame.eq(frame_in),
                known.eq(index < p.qps),
                qp.eq(Mux(index < p.qps, index[: p.qp_bits], 0)),
                turn.eq(Mux(chosen == p.planes - 1, 0, chosen + 1)),
            ]

        # --- check of the QP ------------------------------------------------------------------------------------------------------------
        peer, cfg = read.data, self.global_config
        result = Signal(self.layouts.rx)
        from_peer = one_of_planes(frame.src_ip, Mux(peer.ipv4, peer.peer_ip[:32], peer.peer_ip), p.planes)
        to_us = one_of_planes(frame.dst_ip, Mux(peer.ipv4, cfg.local_ip4, cfg.local_ip6), p.planes)
        m.d.comb += [
            result.qp.eq(qp),
            result.known.eq(known),
            result.addr_ok.eq(known & (frame.ipv4 == peer.ipv4) & from_peer & to_us),
            result.pkey_ok.eq(known & (frame.pkey == peer.pkey)),
        ]
        m.d.comb += [result[name].eq(frame[name]) for name in self.layouts.rx.members if name in self.layouts.rx_frame.members]
        feedback = self._is_feedback(frame.opcode)
        for queue, mine, out in ((to_req, feedback, self.rx_req), (to_rsp, ~feedback, self.rx_rsp)):
            m.d.comb += [
                queue.w_data.eq(result),
                queue.w_en.eq(frame_valid & mine),
                out.payload.as_value().eq(queue.r_data),
                out.valid.eq(queue.r_rdy),
                queue.r_en.eq(out.ready),
            ]

        # --- payload in the order of the descriptors --------------------------------------------------------------------------------------
        with m.Switch(order.r_data):
            for n, parser in enumerate(self.parsers):
                with m.Case(n):
                    m.d.comb += [
                        self.payload.payload.eq(parser.payload.payload),
                        self.payload.valid.eq(parser.payload.valid & order.r_rdy),
                        parser.payload.ready.eq(self.payload.ready & order.r_rdy),
                    ]
        m.d.comb += order.r_en.eq(self.payload.valid & self.payload.ready & self.payload.payload.last)
        return m

    @staticmethod
    def _is_feedback(opcode: Value) -> Value:
        return (opcode == Opcode.SACK) | (opcode == Opcode.NACK) | (opcode == Opcode.ACK)
