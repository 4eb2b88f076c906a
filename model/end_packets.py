"""From step outputs to packets: addresses, traffic classes, header fields (facts 2; MRC-REQ-267..270). Pure functions."""

from __future__ import annotations

from typing import Any, Protocol

from .config import GlobalConfig, QpConfig
from .rsp_state import EmitAckOut, EmitNackOut, EmitSackOut
from .serial import signed
from .spec import Dscp, Ecn, Opcode
from .wire_packet import Packet, WireConfig, traffic_class

_M16, _M32 = (1 << 16) - 1, (1 << 32) - 1


class DataOut(Protocol):
    """What a data packet takes from a SEND record."""

    rtx: int
    psn: int
    plane: int
    ev: int
    opcode: int
    a: int
    rqmsn: int
    msn: int
    va: int
    rkey: int
    dmalen: int
    imm: int


class ProbeOut(Protocol):
    """What a probe takes from a PROBE record."""

    id: int
    plane: int
    ev: int


def wire_config(glob: GlobalConfig) -> WireConfig:
    """The codec's settings of a NIC with this global configuration."""
    dscp = {cls: int(getattr(glob, f"dscp_{cls.name.lower()}")) for cls in Dscp}
    known = frozenset(Opcode) - {Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_RESPONSE}
    return WireConfig(udp_port=glob.udp_port, ev_swap=bool(glob.ev_swap), hop_limit=glob.hop_limit, dscp=dscp, known_opcodes=known)


def wire_tick(tick: int) -> int:
    """The 16-bit timestamp of a tick: 0 means none on the wire, so tick 0 is written as 1."""
    return tick & _M16 or 1


class Addresser:
    """Makes packets of one NIC; holds its global configuration."""

    def __init__(self, glob: GlobalConfig, qpn_base: int) -> None:
        self.glob = glob
        self.wire = wire_config(glob)
        self.qpn_base = qpn_base

    def _packet(self, config: QpConfig, plane: int, ev: int, opcode: int, rtx: int, ecn: int, fields: dict[str, Any]) -> Packet:
        glob = self.glob
        return Packet(
            opcode=opcode, smac=glob.local_mac + plane, dmac=config.peer_mac + plane, ipv4=bool(config.ipv4),
            src_ip=(glob.local_ip4 if config.ipv4 else glob.local_ip6) + plane, dst_ip=config.peer_ip + plane,
            dscp=self.wire.dscp[traffic_class(opcode, rtx)], ecn=ecn, hop_limit=glob.hop_limit, ev=ev & _M16 if config.ipv4 else ev,
            udp_dport=glob.udp_port, pkey=config.pkey, dest_qp=config.dest_qpn, rtx=rtx, **fields,
        )  # fmt: skip

    def data(self, config: QpConfig, out: DataOut, payload: bytes, tick: int) -> Packet:
        """A data packet that leaves at ``tick`` (its wire timestamp)."""
        return self._packet(config, out.plane, out.ev, out.opcode, out.rtx, Ecn.ECT0.value, {
            "a": out.a, "ts": 1, "psn": out.psn, "rqmsn": out.rqmsn, "msn": out.msn, "tx_timestamp": tick, "va": out.va, "rkey": out.rkey,
            "dmalen": out.dmalen, "imm": out.imm, "payload": payload,
        })  # fmt: skip

    def probe(self, index: int, config: QpConfig, out: ProbeOut, tick: int) -> Packet:
        """A reliability probe that leaves at ``tick``."""
        return self._packet(config, out.plane, out.ev, Opcode.PROBE.value, 0, Ecn.ECT0.value, {
            **self._cids(self.qpn_base + index, config.dest_qpn), "probe_id": out.id, "tx_timestamp": tick,
        })  # fmt: skip

    def _cids(self, source: int, destination: int) -> dict[str, int]:
        """spdcid and dpdcid: the QP numbers of who sends the data (or probe) and who receives it, in a SACK or NACK too."""
        return {"spdcid": source & _M16, "dpdcid": destination & _M16}

    def sack(self, index: int, config: QpConfig, out: EmitSackOut) -> Packet:
        """A SACK; BTH.PSN = cack_psn."""
        answer = out.answer
        return self._packet(config, out.plane, out.ev, Opcode.SACK.value, 0, Ecn.NOT_ECT.value, {
            **self._cids(config.dest_qpn, self.qpn_base + index), "psn": out.cack_psn, "mflag": answer.mflag, "pr": answer.pr, "entropy": answer.ev,
            "ack_psn_offset": 0 if answer.pr else signed(out.ack_psn_offset, 16), "probe_id": out.ack_psn_offset if answer.pr else 0,
            "cack_psn": out.cack_psn, "mpr": out.mpr, "sack_offset": out.sack_offset, "sack_bitmap": out.sack_bitmap,
            "echo_timestamp": answer.tick, "ooo_count": out.ooo_count, "rcvd_bytes": out.rcvd_bytes,
        })  # fmt: skip

    def nack(self, index: int, config: QpConfig, out: EmitNackOut) -> Packet:
        """A NACK; BTH.PSN = nack_psn."""
        answer = out.answer
        return self._packet(config, out.plane, out.ev, Opcode.NACK.value, 0, Ecn.NOT_ECT.value, {
            **self._cids(config.dest_qpn, self.qpn_base + index), "psn": answer.psn, "nack_psn": answer.psn, "nack_reason": answer.reason, "entropy": answer.ev,
            "echo_timestamp": answer.tick,
        })  # fmt: skip

    def ack(self, config: QpConfig, out: EmitAckOut) -> Packet:
        """A transport ACK or NAK."""
        return self._packet(config, out.plane, out.ev, Opcode.ACK.value, 0, Ecn.NOT_ECT.value, {
            "psn": out.psn, "syndrome": out.syndrome, "aeth_msn": out.aeth_msn,
        })  # fmt: skip


def address_ok(packet: Packet, glob: GlobalConfig, config: QpConfig, planes: int) -> int:
    """Whether the packet's addresses are the peer's and ours, on any plane, of the QP's IP version."""
    if packet.ipv4 != bool(config.ipv4):
        return 0
    local = glob.local_ip4 if config.ipv4 else glob.local_ip6
    return int(0 <= packet.src_ip - config.peer_ip < planes and 0 <= packet.dst_ip - local < planes)
