"""The headers of a frame from its descriptor and the configuration (facts 2; MRC-REQ-003 to 007, 011 to 016)."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import GLOBAL_CONFIG, QP_CONFIG, Layouts, header_layout
from hdl.params import Params
from hdl.wire.headers import EXT_AT, KNOWN_OPCODES, MAX_HEADERS, pack
from model import spec
from model.spec import DATA_OPCODES, Ecn, Opcode

PEER = data.StructLayout({name: QP_CONFIG.members[name] for name in ("dest_qpn", "pkey", "ipv4", "peer_ip", "peer_mac")})


def job(params: Params) -> data.StructLayout:
    """A descriptor on its way to the builder.

    ``answer``: of the responder. ``reserved``: words of room that were set aside for it. ``void``: nothing is sent, the room comes back.
    """
    return data.StructLayout({"tx": Layouts(params).tx, "answer": 1, "reserved": 10, "void": 1})


class Assemble(wiring.Component):
    """Header bytes, byte 0 of the wire in the lowest bits, zero behind the last header.

    A pulse on ``begin`` starts it; ``tx``, ``peer`` and the configuration must hold from then until the frame is taken. ``ready`` rises 6
    clocks later (the IPv4 checksum is summed in steps) and falls with ``begin``. ``timestamp`` goes straight into ``headers``.
    ``length``: bytes of headers; ``pad``: bytes behind the payload.
    """

    def __init__(self, params: Params) -> None:
        self.p = params
        self.layouts = Layouts(params)
        self.octets = MAX_HEADERS
        super().__init__({
            "begin": In(1), "tx": In(self.layouts.tx), "peer": In(PEER), "global_config": In(GLOBAL_CONFIG), "timestamp": In(16),
            "ready": Out(1), "headers": Out(8 * self.octets), "length": Out(range(self.octets + 1)), "pad": Out(2),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        tx, peer, cfg = self.tx, self.peer, self.global_config
        is_data, probe = Signal(), Signal()
        ext_bytes = Signal(range(64))
        with m.Switch(tx.opcode):
            for op in KNOWN_OPCODES:
                with m.Case(op):
                    m.d.comb += [is_data.eq(op in DATA_OPCODES), probe.eq(op == Opcode.PROBE), ext_bytes.eq(spec.extension_bytes(op, 1))]

        # --- lengths and the checksum, a step a clock
        step = Signal(range(6))
        udp_length = Signal(16)
        total_length = Signal(16)
        dscp = Signal(6)
        ecn = Signal(2)
        src_ip, dst_ip = Signal(128), Signal(128)
        sums = [Signal(18, name=f"sum{i}") for i in range(3)]
        sum_all = Signal(20)
        folded = Signal(17)
        local = Mux(peer.ipv4, cfg.local_ip4, cfg.local_ip6)
        remote = Mux(peer.ipv4, peer.peer_ip[:32], peer.peer_ip)
        first_word = pack(("IPV4",), self._ipv4(dscp, ecn, total_length, Const(0, 16), src_ip, dst_ip))
        words = [Cat(first_word.word_select(2 * i + 1, 8), first_word.word_select(2 * i, 8)) for i in range(spec.IPV4_BYTES // 2)]
        m.d.comb += self.pad.eq(-tx.plen)
        with m.If(self.begin):
            m.d.sync += [step.eq(1), self.ready.eq(0)]
        with m.Elif(step != 0):
            m.d.sync += [step.eq(Mux(step == 5, 0, step + 1)), self.ready.eq(step == 5)]
        m.d.sync += [
            udp_length.eq(spec.UDP_BYTES + spec.BTH_BYTES + spec.ICRC_BYTES + ext_bytes + tx.plen + self.pad),
            dscp.eq(Mux(is_data & tx.rtx, cfg.dscp_trimmable_retx, Mux(is_data | probe, cfg.dscp_trimmable, cfg.dscp_control))),
            ecn.eq(Mux(is_data | probe, Ecn.ECT0, Ecn.NOT_ECT)),
            self.length.eq(Mux(peer.ipv4, EXT_AT[True], EXT_AT[False]) + ext_bytes),
            src_ip.eq(self._plane(local)),
            dst_ip.eq(self._plane(remote)),
            total_length.eq(udp_length + spec.IPV4_BYTES),
            *(part.eq(sum(words[i + 1 : i + 4], words[i])) for part, i in zip(sums, (0, 4, 8))),
            sum_all.eq(sums[0] + sums[1] + sums[2]),
            folded.eq(sum_all[:16] + sum_all[16:]),
        ]
        checksum = ~(folded[:16] + folded[16:])[:16]

        # --- headers ------------------------------------------------------------------------------------------------------------------
        ev = tx.ev
        high, low = ev[16:], ev[:16]
        sport = Mux(peer.ipv4 | cfg.ev_swap, low, high)
        label = Mux(cfg.ev_swap, high, low)
        ethernet = {"dmac": self._plane(peer.peer_mac), "smac": self._plane(cfg.local_mac)}
        eth = [pack(("ETH",), {**ethernet, "ethertype": Const(kind, 16)}) for kind in (spec.ETHERTYPE_IPV6, spec.ETHERTYPE_IPV4)]
        ip6 = pack(("IPV6",), {"version": 6, "dscp": dscp, "ecn": ecn, "flow_label": label, "payload_length": udp_length,
                               "protocol": spec.IP_PROTO_UDP, "hop_limit": cfg.hop_limit, "src_ip": src_ip, "dst_ip": dst_ip})  # fmt: skip
        ip4 = pack(("IPV4",), self._ipv4(dscp, ecn, total_length, checksum, src_ip, dst_ip))
        udp = {"sport": sport, "dport": cfg.udp_port, "udp_length": udp_length, "udp_checksum": 0}
        bth = {"opcode": tx.opcode, "se": 0, "m": 0, "pad": self.pad, "pkey": peer.pkey, "var": 0, "dest_qp": peer.dest_qpn, "a": tx.a, "r": 0,
               "rtx": tx.rtx, "ts": is_data, "psn": tx.psn}  # fmt: skip
        upper = Cat(pack(("UDP", "BTH"), udp | bth), self._extensions())
        whole = Mux(peer.ipv4, Cat(eth[1], ip4, upper), Cat(eth[0], ip6, upper))
        m.d.comb += self.headers.eq(whole)
        return m

    def _plane(self, base: Value) -> Value:
        """An address of this frame's plane: the plane's number is added to the lowest byte, which does not carry over."""
        return Cat((base[:8] + self.tx.plane)[:8], base[8:])

    def _ipv4(self, dscp: Value, ecn: Value, total_length: Value, checksum: Value, src_ip: Value, dst_ip: Value) -> dict[str, Value | int]:
        return {"version": 4, "ihl": spec.IPV4_BYTES // 4, "dscp": dscp, "ecn": ecn, "total_length": total_length, "identification": 0, "df": 1, "mf": 0,
                "fragment": 0, "hop_limit": self.global_config.hop_limit, "protocol": spec.IP_PROTO_UDP, "checksum": checksum, "src_ip": src_ip,
                "dst_ip": dst_ip}  # fmt: skip

    def _extensions(self) -> Value:
        """Extension headers of the opcode. Connection ids and timestamps are ours to fill in, the rest is the descriptor's."""
        tx, peer = self.tx, self.peer
        ours = (self.p.qpn_base + tx.qp)[:16]
        filled = {"spdcid": ours, "dpdcid": peer.dest_qpn[:16], "tx_timestamp": self.timestamp, "tsr": Const(0, 1)}
        out: Value = Const(0, 8)
        shapes: dict[tuple[str, ...], list[int]] = {}
        for op in KNOWN_OPCODES:
            shapes.setdefault(spec.extensions(op, 1), []).append(op)
        for headers, opcodes in shapes.items():
            kind = ("METH", "TSETH", "RETH", "IMMDT") if opcodes[0] in DATA_OPCODES else headers
            view = header_layout(*kind)(tx.ext.as_value()[: header_layout(*kind).size])
            values = {name: view[name] for name in view.shape().members} | filled
            wanted = sum(((tx.opcode == op) for op in opcodes[1:]), tx.opcode == opcodes[0]).any()
            out = Mux(wanted, pack(headers, values), out)
        return out
