"""The packet as the protocol sees it, and the settings of the wire: :class:`Packet`, :class:`WireConfig`, entropy values and DSCP classes.

:class:`Packet` is flat: its fields bear the names of the header tables of :mod:`model.spec`, and one that the opcode's headers do not
carry is 0. A test holds the two against each other. :mod:`model.wire` turns packets into frames and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .spec import (
    BTH_BYTES,
    DATA_OPCODES,
    HOP_LIMIT,
    ICRC_BYTES,
    ROUTING_BYTES,
    UDP_BYTES,
    UDP_PORT,
    Dscp,
    Opcode,
    extension_bytes,
)

NOT_TRIMMED, TRIMMED, TRIMMED_LASTHOP = range(3)  # values of Packet.trimmed


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet, from Ethernet addresses to payload. Every field has a default, so that a packet is written tersely.

    Fields are unsigned integers of the width that spec.py gives, except the signed ``ack_psn_offset`` and ``sack_offset`` (16 bits).
    Fields that spec.py marks as fixed (type, nxt, ftype, cc_type, cc_flags, tver) and ICRC, checksums and lengths are not here:
    :func:`model.wire.build` makes them.
    """

    opcode: int = Opcode.WRITE_ONLY
    # Ethernet and IP
    smac: int = 0x02_00_00_00_00_01
    dmac: int = 0x02_00_00_00_00_02
    ipv4: bool = False
    src_ip: int = 0  # 128 bits, or 32 when ipv4
    dst_ip: int = 0
    dscp: int = 0  # 6 bits, the value on the wire (WireConfig.dscp names the classes)
    ecn: int = 0  # 2 bits, spec.Ecn
    hop_limit: int = HOP_LIMIT  # TTL over IPv4
    ev: int = 0  # 32 bits, the entropy value of this packet's own path; over IPv4 only the low half travels, the high half is 0
    udp_dport: int = UDP_PORT
    # BTH
    se: int = 0
    m: int = 0
    pad_error: int = 0  # 2 bits: BTH.pad XOR the right pad; 0 in every sound packet that is not trimmed (see property pad)
    pkey: int = 0xFFFF
    var: int = 0
    dest_qp: int = 0
    a: int = 0
    r: int = 0
    rtx: int = 0
    ts: int = 0
    psn: int = 0
    # METH, TSETH, RETH, ImmDt
    rqmsn: int = 0
    msn: int = 0
    tx_timestamp: int = 0  # 16 bits, ticks of 128 ns (tsr = 0) or microseconds (tsr = 1); 0 means none
    tsr: int = 0
    va: int = 0
    rkey: int = 0
    dmalen: int = 0  # bytes of the whole message
    imm: int = 0
    # AETH
    syndrome: int = 0
    aeth_msn: int = 0
    # SETH, CC_STATE
    mflag: int = 0  # spec.MFlag
    pr: int = 0  # 1: answers a probe; the wire then has probe_id in place of ack_psn_offset, which reads as 0
    ack_psn_offset: int = 0  # signed; acknowledged PSN = cack_psn + offset; 0 when pr = 1
    entropy: int = 0  # SACK and NACK: the EV of the packet that caused it
    spdcid: int = 0
    dpdcid: int = 0
    cack_psn: int = 0
    mpr: int = 0  # units of 128 packets
    sack_offset: int = 0  # signed; bit i of the bitmap is PSN cack_psn + sack_offset + i
    sack_bitmap: int = 0
    echo_timestamp: int = 0
    ooo_count: int = 0
    restore_cwnd: int = 0
    rcv_cwnd_pen: int = 0
    rcvd_bytes: int = 0  # units of 256 bytes
    # NETH
    nack_reason: int = 0  # spec.NackReason
    vendor: int = 0
    nack_psn: int = 0
    # PETH; ERTH and EETH
    probe_id: int = 0
    op: int = 0
    port_status_mask: int = 0
    # What follows the headers
    payload: bytes = b""
    trimmed: int = NOT_TRIMMED

    @property
    def pad(self) -> int:
        """BTH.pad: the bytes (0 .. 3) between payload and ICRC. Right when payload + pad is a multiple of 4."""
        return (-len(self.payload) & 3) ^ self.pad_error

    @property
    def udp_len(self) -> int:
        """UDP length in bytes. Of a trimmed packet it is that of what is left, without an ICRC, whatever the frame's field said.

        ValueError when the opcode is not MRC's.
        """
        headers = UDP_BYTES + BTH_BYTES + extension_bytes(self.opcode, self.ts)
        return headers if self.trimmed else headers + len(self.payload) + self.pad + ICRC_BYTES

    @property
    def size(self) -> int:
        """Bytes of this packet in the accounting of bytes in flight and received: UDP length + 40, also over IPv4 (MRC-REQ-005)."""
        return self.udp_len + ROUTING_BYTES


def _default_dscp() -> Mapping[Dscp, int]:
    return {cls: int(cls) for cls in Dscp}


@dataclass(frozen=True, slots=True)
class WireConfig:
    """Settings of a deployment that the wire format depends on; both ends must agree on all but what they send or accept.

    ValueError when a DSCP class has no value, a trimmed class shares its value, or a number or opcode is none.
    """

    udp_port: int = UDP_PORT  # the one UDP destination port that is accepted
    ev_swap: bool = False  # IPv6: False = EV[31:16] is the UDP source port, True = EV[15:0] is
    hop_limit: int = HOP_LIMIT  # for senders: what they put into Packet.hop_limit
    dscp: Mapping[Dscp, int] = field(default_factory=_default_dscp)  # DSCP value of each class
    known_opcodes: frozenset[int] = frozenset(Opcode)  # opcodes that this side accepts

    def __post_init__(self) -> None:
        if not 0 < self.udp_port < 1 << 16 or not 0 < self.hop_limit < 256:
            raise ValueError(f"UDP port {self.udp_port} or hop limit {self.hop_limit} is out of range")
        if set(self.dscp) != set(Dscp) or not all(0 <= value < 64 for value in self.dscp.values()):
            raise ValueError("every DSCP class needs a value of 0 .. 63")
        values = [self.dscp[cls] for cls in Dscp]
        if any(values.count(self.dscp[cls]) > 1 for cls in (Dscp.TRIMMED, Dscp.TRIMMED_LASTHOP)):
            raise ValueError("a trimmed class shares its DSCP value with another class")
        if not self.known_opcodes <= frozenset(Opcode):
            raise ValueError("known_opcodes holds a value that is not an MRC opcode")

    def trimmed(self, dscp: int) -> int:
        """Which trimming a packet with this DSCP value underwent: NOT_TRIMMED, TRIMMED or TRIMMED_LASTHOP."""
        if dscp == self.dscp[Dscp.TRIMMED]:
            return TRIMMED
        return TRIMMED_LASTHOP if dscp == self.dscp[Dscp.TRIMMED_LASTHOP] else NOT_TRIMMED


DEFAULT_CONFIG = WireConfig()


def traffic_class(opcode: int, rtx: int, can_trim: bool = True) -> Dscp:
    """The DSCP class in which a packet is sent (MRC-REQ-016). ``can_trim``: whether the fabric trims.

    Data and reliability probes are TRIMMABLE, retransmissions TRIMMABLE_RETX (both NO_TRIM where the fabric cannot trim), all others
    CONTROL.
    """
    if opcode in DATA_OPCODES:
        return (Dscp.TRIMMABLE_RETX if rtx else Dscp.TRIMMABLE) if can_trim else Dscp.NO_TRIM
    if opcode == Opcode.PROBE:
        return Dscp.TRIMMABLE if can_trim else Dscp.NO_TRIM
    return Dscp.CONTROL


def ev_to_ports(ev: int, swap: bool = False, ipv4: bool = False) -> tuple[int, int]:
    """UDP source port and flow label (20 bits) that carry the 32-bit entropy value ``ev``; over IPv4 the label is 0 (MRC-REQ-011..013)."""
    high, low = ev >> 16 & 0xFFFF, ev & 0xFFFF
    if ipv4:
        return low, 0
    return (low, high) if swap else (high, low)


def ports_to_ev(sport: int, flow_label: int, swap: bool = False, ipv4: bool = False) -> int:
    """The inverse of :func:`ev_to_ports`; the top 4 bits of the flow label are ignored, over IPv4 the high half of the result is 0."""
    if ipv4:
        return sport & 0xFFFF
    label = flow_label & 0xFFFF
    return label << 16 | sport if swap else sport << 16 | label
