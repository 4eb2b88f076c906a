"""Packets made from step outputs: the facts' vectors byte for byte (MRC-REQ-267 MRC-REQ-268 MRC-REQ-269 MRC-REQ-270)."""

from __future__ import annotations

from model.config import GlobalConfig, QpConfig
from model.end_packets import Addresser, wire_tick
from model.req_results import ProbeOut, SendOut
from model.rsp_state import Answer, EmitAckOut, EmitNackOut, EmitSackOut
from model.spec import Dscp, Opcode
from model.wire import build

RECEIVER, SENDER = 0x312, 0x211
IP1, IP2 = (0x2001_0DB8 << 96) + 1, (0x2001_0DB8 << 96) + 2
EV = 0xABCD1234


def _addresser(qpn: int, local: int) -> Addresser:
    return Addresser(GlobalConfig(local_ip6=local, dscp_control=0, dscp_trimmable=0, dscp_trimmable_retx=0), qpn & ~1)


def _config(peer: int, ip: int) -> QpConfig:
    return QpConfig(dest_qpn=peer, peer_ip=ip)


def test_sack_vector() -> None:
    """MRC-REQ-269, MRC-REQ-270: cack 0x13E, acked 0x142, base 0x140, bitmap 0x5, SKIP_ONCE, mpr 8."""
    answer = Answer(0, 0, psn=0x142, mflag=1, ev=EV, tick=0x1000)
    out = EmitSackOut(0, 1, 0, 0, EV, 1, 1, 0, answer, 0x13E, 2, 5, 4, 2, 0x24, 8)
    packet = _addresser(RECEIVER, IP1).sack(0, _config(SENDER, IP2), out)
    assert build(packet)[14:].hex() == (
        "60001234003c114020010db800000000000000000000000120010db8000000000000000000000002abcd12b7003c0000dc00ffff000002110000013e00200004abcd1234"
        "021103120000013e0008000200000000000000051000000200000024c730787e")
    answer.pr, out.ack_psn_offset = 1, 0x9234
    packet = _addresser(RECEIVER, IP1).sack(0, _config(SENDER, IP2), out)
    assert (packet.pr, packet.probe_id, packet.ack_psn_offset) == (1, 0x9234, 0)


def test_nack_vector() -> None:
    """MRC-REQ-269, MRC-REQ-270: TRIMMED, PSN 0x141, ts 0x1234."""
    out = EmitNackOut(0, 1, 0, 0, EV, 1, 1, 0, Answer(0, 0, reason=1, psn=0x141, ev=EV, tick=0x1234))
    packet = _addresser(RECEIVER, IP1).nack(0, _config(SENDER, IP2), out)
    assert build(packet)[14:].hex() == (
        "60001234002c114020010db800000000000000000000000120010db8000000000000000000000002abcd12b7002c0000dd00ffff000002110000014100000100abcd1234"
        "02110312000001412000123468b6685c")


def test_write_vector() -> None:
    """MRC-REQ-267, MRC-REQ-268: WRITE ONLY 16 B, PSN 0x140, A = 1, ts = 1, ECN field 2, MSN 5."""
    out = SendOut(0, 0x140, 0, 0, EV, 0, Opcode.WRITE_ONLY, 1, 0, 16, 0, 5, 0x1000200030004000, 0xCAFE0001, 16, 0, 0x1234, 1)
    packet = _addresser(SENDER, IP1).data(_config(RECEIVER, IP2), out, bytes(range(16)), 0x1234)
    assert build(packet)[14:].hex() == (
        "602012340040114020010db800000000000000000000000120010db8000000000000000000000002abcd12b700400000ca00ffff00000312900001400000000512340001"
        "1000200030004000cafe000100000010000102030405060708090a0b0c0d0e0f4bb46d3e")


def test_planes_and_classes() -> None:
    """MRC-REQ-267: plane n's own addresses to the peer's of plane n; classes by kind."""
    make = Addresser(GlobalConfig(local_ip6=IP1 << 8, local_ip4=0x0A000010, local_mac=0x20), 0x100)
    config = QpConfig(dest_qpn=0x300, peer_ip=0x0A000080, peer_mac=0x40, ipv4=1)
    out = SendOut(1, 7, 1, 2, EV, 0, Opcode.WRITE_ONLY, 1, 0, 4, 0, 5, 0, 0, 4, 0, 1, 1)
    data = make.data(config, out, bytes(4), 9)
    assert (data.smac, data.dmac, data.src_ip, data.dst_ip, data.ev, data.ipv4) == (0x21, 0x41, 0x0A000011, 0x0A000081, 0x1234, True)
    assert data.dscp == Dscp.TRIMMABLE_RETX
    probe = make.probe(1, config, ProbeOut(0, 0x8001, 1, 2, EV, 9), 9)
    assert (probe.dscp, probe.ecn, probe.psn, probe.probe_id, probe.spdcid, probe.dpdcid) == (Dscp.TRIMMABLE, 2, 0, 0x8001, 0x101, 0x300)
    ack = make.ack(config, EmitAckOut(0, 3, 1, 0, EV, 1, 1, 0, 0x1F, 5, 1))
    assert (ack.dscp, ack.ecn, ack.psn, ack.syndrome, ack.aeth_msn) == (Dscp.CONTROL, 0, 5, 0x1F, 1)


def test_wire_tick() -> None:
    """MRC-REQ-268: 16 bits, 0 is written as 1."""
    assert [wire_tick(t) for t in (0, 1, 0xFFFF, 0x10000, 0x12345)] == [1, 1, 0xFFFF, 1, 0x2345]
