"""The byte codec: :func:`build` makes a frame of a :class:`Packet`, :func:`parse` takes one apart or says why it is dropped.

No dependency, plain integers, fast enough for a bench that parses every frame. Scapy layers, written independently, are in
:mod:`model.layers`; tests hold the two against each other. Field positions come from the header tables of :mod:`model.spec`.

Normative text of the receiver's stateless checks (MRC-REQ-020..036, facts 3)
------------------------------------------------------------------------------------------------
A frame is a string of L bytes from the destination MAC address on, without FCS. **All reads see it extended with zero bytes**, so no
check needs a length check before it. The checks come in this order; the first that fails names the cause, later ones do not count.

======================  =================================================================================================================
cause                   fails when
======================  =================================================================================================================
BAD_FRAME               L < 14 or L > MAX_FRAME (4202), Ethernet padding included. (The MAC's own error flag counts here too.)
ETHERTYPE               bytes 12-13 are neither 0x86DD nor 0x0800. A VLAN tag is not understood.
IP_VERSION              the high nibble of byte 14 is not 6 (0x86DD) or 4 (0x0800). So a frame of exactly 14 bytes fails here.
IP_LENGTH               not for trimmed packets. IPv6: 54 + payload length > L. IPv4: total length < 20 or 14 + total length > L. And where
                        the packet is UDP (see NOT_UDP): UDP length < 8, or UDP length is not the payload length (IPv6) or not total
                        length - 20 (IPv4). Bytes behind the IP packet are Ethernet padding: any number, any value.
IP_CHECKSUM             IPv4 with IHL = 5, trimmed or not: the one's complement sum of the ten 16-bit words of the header, carries folded
                        in, is not 0xFFFF.
NOT_UDP                 IPv6: next header is not 17 (extension headers are not understood). IPv4: IHL is not 5, or protocol is not 17, or MF
                        is set, or the fragment offset is not 0 (DF and the reserved flag are ignored).
UDP_PORT                UDP destination port is not the configured one. The UDP checksum is ignored, whatever it is.
SHORT (1)               no room for BTH and ICRC: UDP length < 24. Trimmed: the frame ends before the BTH does (L < 74, IPv4 L < 54).
ICRC                    not for trimmed packets: the 4 bytes that end at the UDP length are not the ICRC of what is before them.
BTH_VERSION             BTH.tver is not 0.
OPCODE                  BTH.opcode is not among ``known_opcodes``.
TRIM_IGNORED            trimmed, and not a data opcode.
SHORT (2)               not for trimmed packets: UDP length < 24 + the opcode's extension headers (TSETH counts when BTH.ts is set on a
                        data opcode; BTH.ts is ignored on others) + BTH.pad.
======================  =================================================================================================================

A packet is **trimmed** when its DSCP (upper 6 bits of traffic class or TOS) is the configured TRIMMED or TRIMMED_LASTHOP value. It has
no payload; fields behind the end of the frame, or the part of one that is behind it, read as 0. Whether a field is there depends on L
alone, not on a length field, and Ethernet padding cannot be told from a field.

Accepted as they are, for the checks with state to judge: reserved bits, fixed fields other than tver, the flow label's top 4 bits, SE,
M, BTH byte 4, the R bit, MAC addresses, hop limit 0, ECN, a pad that does not make the payload a multiple of 4 (Packet.pad_error), bytes
behind the headers of a packet that carries no data (Packet.payload; they are ignored).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any
from zlib import crc32

from .serial import signed
from .spec import (
    BTH_BYTES,
    DATA_OPCODES,
    ETH_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    HEADERS,
    ICRC_BYTES,
    IP_PROTO_UDP,
    IPV4_BYTES,
    IPV6_BYTES,
    MAX_EXTENSION_BYTES,
    MAX_FRAME,
    UDP_BYTES,
    Drop,
    Opcode,
    extensions,
    header_bytes,
)
from .wire_packet import (
    DEFAULT_CONFIG,
    NOT_TRIMMED,
    TRIMMED,
    TRIMMED_LASTHOP,
    Packet,
    WireConfig,
    ev_to_ports,
    ports_to_ev,
    traffic_class,
)

__all__ = [
    "DEFAULT_CONFIG", "NOT_TRIMMED", "TRIMMED", "TRIMMED_LASTHOP", "Packet", "WireConfig", "build", "ev_to_ports", "icrc", "ipv4_checksum",
    "parse", "ports_to_ev", "traffic_class",
]  # fmt: skip

_ETH = Struct("!6s6sH")
_IP4 = Struct("!BBHHHBBHII")
_IP6 = Struct("!IHBB16s16s")
_UDP = Struct("!HHHH")
_DONT_FRAGMENT = 0x4000
_MORE_FRAGMENTS_AND_OFFSET = 0x3FFF
_HEADERS_END = ETH_BYTES + IPV6_BYTES + UDP_BYTES + BTH_BYTES + MAX_EXTENSION_BYTES


@dataclass(frozen=True, slots=True)
class _Layout:
    """Headers read or written as one big integer."""

    size: int  # bytes
    fields: tuple[tuple[str, int, int, bool], ...]  # name, position of the least significant bit, width, signedness
    constant: int  # the fixed fields at their defaults


def _layout(names: tuple[str, ...]) -> _Layout:
    size = sum(header_bytes(name) for name in names)
    position, constant, fields = 8 * size, 0, []
    for field in (field for name in names for field in HEADERS[name]):
        position -= field.bits
        if field.fixed:
            constant |= field.default << position
        elif field.name:
            fields.append((field.name, position, field.bits, field.signed))
    return _Layout(size, tuple(fields), constant)


_BTH = _layout(("BTH",))
_EXTENSIONS = {(int(opcode), ts): _layout(extensions(opcode, ts)) for opcode in Opcode for ts in (0, 1)}


def _decode(layout: _Layout, data: bytes) -> dict[str, Any]:
    number = int.from_bytes(data, "big")
    out: dict[str, Any] = {}
    for name, position, bits, is_signed in layout.fields:
        value = number >> position & (1 << bits) - 1
        out[name] = signed(value, bits) if is_signed else value
    return out


def _encode(layout: _Layout, packet: Packet) -> bytes:
    number = layout.constant
    for name, position, bits, is_signed in layout.fields:
        value: int = getattr(packet, name)
        if name == "ack_psn_offset" and packet.pr:
            value = signed(packet.probe_id, bits)
        reduced = value & (1 << bits) - 1
        if (signed(reduced, bits) if is_signed else reduced) != value:
            raise ValueError(f"{name} = {value} does not fit in {bits} bits")
        number |= reduced << position
    return number.to_bytes(layout.size, "big")


# --- Checksums ---------------------------------------------------------------------------------------------------------------------
def _mask(size: int, *ranges: tuple[int, int]) -> int:
    """An integer over ``size`` bytes with ones in the bytes [start, end) of each range."""
    return sum(int.from_bytes(b"\xff" * (end - start), "big") << 8 * (size - end) for start, end in ranges)


_CRC_START = crc32(b"\xff" * 8)
_HEAD6, _HEAD4 = (ip + UDP_BYTES + BTH_BYTES for ip in (IPV6_BYTES, IPV4_BYTES))
# IPv6: traffic class, flow label (low 28 bits of word 0), hop limit; IPv4: TOS, TTL, header checksum; both: UDP checksum, BTH byte 4.
_MASK6 = _mask(_HEAD6, (1, 4), (7, 8), (46, 48), (52, 53)) | 0x0F << 8 * (_HEAD6 - 1)
_MASK4 = _mask(_HEAD4, (1, 2), (8, 9), (10, 12), (26, 28), (32, 33))


def icrc(packet: bytes) -> int:
    """The invariant CRC (32 bits) of ``packet``, which runs from the (inner) IP header to just before the ICRC (MRC-REQ-008, 009).

    It is sent least significant byte first. ValueError when the packet does not reach the end of the BTH.
    """
    size, ones = (_HEAD6, _MASK6) if packet[:1] >= b"\x60" else (_HEAD4, _MASK4)
    if len(packet) < size:
        raise ValueError(f"the ICRC needs at least {size} bytes from the IP header on")
    head = (int.from_bytes(packet[:size], "big") | ones).to_bytes(size, "big")
    return crc32(packet[size:], crc32(head, _CRC_START))


def ipv4_checksum(header: bytes) -> int:
    """The IPv4 header checksum (16 bits) over ``header``; 0 when ``header`` already holds the right one.

    The sum of 16-bit words with carries folded in is the number modulo 0xFFFF, and a header is never all zeros.
    """
    return 0xFFFF - (int.from_bytes(header, "big") % 0xFFFF or 0xFFFF)


# --- Build -------------------------------------------------------------------------------------------------------------------------
def build(packet: Packet, config: WireConfig = DEFAULT_CONFIG, min_frame: int = 0) -> bytes:
    """The Ethernet frame of ``packet``, without FCS; padded with zeros to ``min_frame`` bytes (60 on real Ethernet).

    UDP checksum 0; IPv4 with identification 0 and DF. A packet with ``trimmed`` set gets lengths that fit what is left, no payload and
    no ICRC; its DSCP is not touched. Of ``config`` only ``ev_swap`` matters. ValueError when a field does not fit its width, when the
    opcode is not MRC's, or when the frame would exceed MAX_FRAME.
    """
    if (packet.opcode, packet.ts) not in _EXTENSIONS:
        raise ValueError(f"opcode {packet.opcode:#x} with ts {packet.ts} is not an MRC packet")
    for name, value, bits in (("dscp", packet.dscp, 6), ("ecn", packet.ecn, 2), ("ev", packet.ev, 32), ("pad_error", packet.pad_error, 2)):
        if value >> bits:
            raise ValueError(f"{name} = {value} does not fit in {bits} bits")
    sport, label = ev_to_ports(packet.ev, config.ev_swap, packet.ipv4)
    traffic, length = packet.dscp << 2 | packet.ecn, packet.udp_len
    try:
        if packet.ipv4:
            words = [0x45, traffic, IPV4_BYTES + length, 0, _DONT_FRAGMENT, packet.hop_limit, IP_PROTO_UDP, 0, packet.src_ip, packet.dst_ip]
            words[7] = ipv4_checksum(_IP4.pack(*words))
            ip = _IP4.pack(*words)
        else:
            source, destination = packet.src_ip.to_bytes(16, "big"), packet.dst_ip.to_bytes(16, "big")
            ip = _IP6.pack(6 << 28 | traffic << 20 | label, length, IP_PROTO_UDP, packet.hop_limit, source, destination)
        ethertype = ETHERTYPE_IPV4 if packet.ipv4 else ETHERTYPE_IPV6
        ethernet = _ETH.pack(packet.dmac.to_bytes(6, "big"), packet.smac.to_bytes(6, "big"), ethertype)
        udp = _UDP.pack(sport, packet.udp_dport, length, 0)
    except (OverflowError, StructError) as error:
        raise ValueError(f"an address, port, length or hop limit is out of range: {error}") from error
    body = ip + udp + _encode(_BTH, packet) + _encode(_EXTENSIONS[packet.opcode, packet.ts], packet)
    if not packet.trimmed:
        body += packet.payload + bytes(packet.pad)
        body += icrc(body).to_bytes(ICRC_BYTES, "little")
    frame = (ethernet + body).ljust(min_frame, b"\0")
    if len(frame) > MAX_FRAME:
        raise ValueError(f"a frame of {len(frame)} bytes exceeds {MAX_FRAME}")
    return frame


# --- Parse -------------------------------------------------------------------------------------------------------------------------
def parse(frame: bytes, config: WireConfig = DEFAULT_CONFIG) -> Packet | Drop:
    """The packet in ``frame`` (Ethernet, no FCS), or the cause for which it is dropped: the checks in the module's text, in its order.

    Never raises, whatever the bytes.
    """
    length = len(frame)
    if not ETH_BYTES <= length <= MAX_FRAME:
        return Drop.BAD_FRAME
    data = frame.ljust(_HEADERS_END, b"\0")
    dmac, smac, ethertype = _ETH.unpack_from(data)
    if ethertype == ETHERTYPE_IPV6:
        ipv4, udp_at = False, ETH_BYTES + IPV6_BYTES
        word, ip_payload, protocol, hop_limit, source, destination = _IP6.unpack_from(data, ETH_BYTES)
        version, traffic, label = word >> 28, word >> 20 & 0xFF, word & 0xFFFFF
        src_ip, dst_ip = int.from_bytes(source, "big"), int.from_bytes(destination, "big")
        is_udp = protocol == IP_PROTO_UDP
    elif ethertype == ETHERTYPE_IPV4:
        ipv4, udp_at, label = True, ETH_BYTES + IPV4_BYTES, 0
        word, traffic, total, _, fragment, hop_limit, protocol, _, src_ip, dst_ip = _IP4.unpack_from(data, ETH_BYTES)
        version, ip_payload = word >> 4, total - IPV4_BYTES
        is_udp = word & 15 == 5 and protocol == IP_PROTO_UDP and not fragment & _MORE_FRAGMENTS_AND_OFFSET
    else:
        return Drop.ETHERTYPE
    if version != (4 if ipv4 else 6):
        return Drop.IP_VERSION
    sport, dport, udp_len, _ = _UDP.unpack_from(data, udp_at)
    trimmed = config.trimmed(traffic >> 2)
    if not trimmed and (ip_payload < 0 or udp_at + ip_payload > length or is_udp and (udp_len < UDP_BYTES or udp_len != ip_payload)):
        return Drop.IP_LENGTH
    if ipv4 and word & 15 == 5 and ipv4_checksum(data[ETH_BYTES:udp_at]):
        return Drop.IP_CHECKSUM
    if not is_udp:
        return Drop.NOT_UDP
    if dport != config.udp_port:
        return Drop.UDP_PORT
    bth_at = udp_at + UDP_BYTES
    extensions_at = bth_at + BTH_BYTES
    end = udp_at + udp_len - ICRC_BYTES  # of payload and pad
    if length < extensions_at if trimmed else end < extensions_at:
        return Drop.SHORT
    if not trimmed and icrc(data[ETH_BYTES:end]) != int.from_bytes(data[end : end + ICRC_BYTES], "little"):
        return Drop.ICRC
    if data[bth_at + 1] & 15:
        return Drop.BTH_VERSION
    if data[bth_at] not in config.known_opcodes:
        return Drop.OPCODE
    if trimmed and data[bth_at] not in DATA_OPCODES:
        return Drop.TRIM_IGNORED
    fields = _decode(_BTH, data[bth_at:extensions_at])
    layout = _EXTENSIONS[data[bth_at], fields["ts"]]
    payload_at = extensions_at + layout.size
    pad = fields.pop("pad")
    if trimmed:
        payload = b""
    elif end < payload_at + pad:
        return Drop.SHORT
    else:
        payload = data[payload_at : end - pad]
    fields.update(_decode(layout, data[extensions_at:payload_at]))
    if fields.get("pr"):
        fields["probe_id"], fields["ack_psn_offset"] = fields["ack_psn_offset"] & 0xFFFF, 0
    return Packet(
        smac=int.from_bytes(smac, "big"), dmac=int.from_bytes(dmac, "big"), ipv4=ipv4, src_ip=src_ip, dst_ip=dst_ip, dscp=traffic >> 2,
        ecn=traffic & 3, hop_limit=hop_limit, ev=ports_to_ev(sport, label, config.ev_swap, ipv4), udp_dport=dport,
        pad_error=pad ^ -len(payload) & 3, payload=payload, trimmed=trimmed, **fields,
    )  # fmt: skip
