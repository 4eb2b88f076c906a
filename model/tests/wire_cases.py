"""Cases shared by the tests of the two codecs: the published vectors, field tables, random packets, and a slow classifier of frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from model import spec, wire
from model.spec import Drop, Opcode
from model.wire import Packet, WireConfig

SRC = 0x20010DB8 << 96 | 1
DST = 0x20010DB8 << 96 | 2
ENDS: dict[str, Any] = {"src_ip": SRC, "dst_ip": DST, "ev": 0xABCD1234}

ROCE_ACK = bytes.fromhex(
    "60012345001c114020010db800000000000000000000000120010db8000000000000000000000002400112b7001c00001100ffff000002110000013f"
    "1f000007e736a99e"
)
VECTORS: dict[str, tuple[bytes, Packet]] = {
    "sack": (
        bytes.fromhex(
            "60001234003c114020010db800000000000000000000000120010db8000000000000000000000002abcd12b7003c0000dc00ffff00000211"
            "0000013e00200004abcd1234021103120000013e0008000200000000000000051000000200000024c730787e"
        ),
        Packet(
            opcode=Opcode.SACK, dest_qp=0x211, psn=0x13E, mflag=spec.MFlag.SKIP_ONCE, ack_psn_offset=4, entropy=0xABCD1234, spdcid=0x211,
            dpdcid=0x312, cack_psn=0x13E, mpr=8, sack_offset=2, sack_bitmap=5, echo_timestamp=0x1000, ooo_count=2, rcvd_bytes=0x24, **ENDS,
        ),
    ),
    "nack": (
        bytes.fromhex(
            "60001234002c114020010db800000000000000000000000120010db8000000000000000000000002abcd12b7002c0000dd00ffff00000211"
            "0000014100000100abcd123402110312000001412000123468b6685c"
        ),
        Packet(
            opcode=Opcode.NACK, dest_qp=0x211, psn=0x141, nack_reason=spec.NackReason.TRIMMED, entropy=0xABCD1234, spdcid=0x211,
            dpdcid=0x312, nack_psn=0x141, echo_timestamp=0x1234, **ENDS,
        ),
    ),
    "write": (
        bytes.fromhex(
            "602012340040114020010db800000000000000000000000120010db8000000000000000000000002abcd12b700400000ca00ffff00000312"
            "9000014000000005123400011000200030004000cafe000100000010000102030405060708090a0b0c0d0e0f4bb46d3e"
        ),
        Packet(
            opcode=Opcode.WRITE_ONLY, ecn=spec.Ecn.ECT0, dest_qp=0x312, a=1, ts=1, psn=0x140, msn=5, tx_timestamp=0x1234,
            va=0x1000200030004000, rkey=0xCAFE0001, dmalen=16, payload=bytes(range(16)), **ENDS,
        ),
    ),
}  # fmt: skip

# One of every shape: each opcode, data with and without TSETH.
SHAPES = [(opcode, ts) for opcode in Opcode for ts in ((0, 1) if opcode in spec.DATA_OPCODES else (0,))]


def header_fields(opcode: int, ts: int) -> list[spec.Field]:
    """The fields that Packet carries for this shape, in wire order, without opcode, pad and ts."""
    names = ("BTH", *spec.extensions(opcode, ts))
    fields = [field for name in names for field in spec.HEADERS[name] if field.name and not field.fixed]
    return [field for field in fields if field.name not in ("opcode", "pad", "ts")]


def unique_packet(opcode: int, ts: int, seed: int = 0, **changes: Any) -> Packet:
    """A packet of this shape with another value in every field, as far as the widths allow; negative in signed ones."""
    values: dict[str, Any] = {}
    for index, field in enumerate(header_fields(opcode, ts)):
        pattern = int.from_bytes(bytes((17 * (index + seed) + 29 * i + 0x81) & 0xFF for i in range(8)), "big")
        values[field.name] = pattern & (1 << field.bits) - 1 if field.bits > 1 else (index + seed) & 1
        if field.signed:
            values[field.name] = -(pattern & (1 << field.bits - 1) - 1) - 1
    return normal(Packet(**{"opcode": opcode, "ts": ts, **ENDS, **values, **changes}))


def normal(packet: Packet) -> Packet:
    """The packet as it reads after a trip over the wire: with pr = 1 ack_psn_offset is 0, with pr = 0 a SACK has no probe_id."""
    if packet.opcode != Opcode.SACK:
        return packet
    return replace(packet, ack_psn_offset=0) if packet.pr else replace(packet, probe_id=0)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    """A random sound packet of any opcode, over IPv6 or IPv4."""
    opcode, ts = draw(st.sampled_from(SHAPES))
    values: dict[str, Any] = {}
    for field in header_fields(opcode, ts):
        low, high = (-(1 << field.bits - 1), (1 << field.bits - 1) - 1) if field.signed else (0, (1 << field.bits) - 1)
        values[field.name] = draw(st.integers(low, high) | st.sampled_from((low, high)))
    if values.get("pr"):
        values["probe_id"] = draw(st.integers(0, 0xFFFF))
    ipv4 = draw(st.booleans())
    address, ev = st.integers(0, (1 << (32 if ipv4 else 128)) - 1), st.integers(0, (1 << (16 if ipv4 else 32)) - 1)
    dscp = st.integers(0, 63).filter(lambda value: value not in (spec.Dscp.TRIMMED, spec.Dscp.TRIMMED_LASTHOP))
    values.update(
        opcode=opcode, ts=ts, ipv4=ipv4, src_ip=draw(address), dst_ip=draw(address), ev=draw(ev), dscp=draw(dscp),
        ecn=draw(st.integers(0, 3)), hop_limit=draw(st.integers(0, 255)), smac=draw(st.integers(0, (1 << 48) - 1)),
        payload=draw(st.binary(max_size=70)) if opcode in spec.DATA_OPCODES else b"",
    )  # fmt: skip
    return normal(Packet(**values))


def folded(header: bytes) -> int:
    """One's complement sum of 16-bit words, carries folded in one by one; a second way to the IPv4 checksum."""
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def classify(frame: bytes, config: WireConfig = wire.DEFAULT_CONFIG) -> Drop | None:
    """The cause for which a frame is dropped, or None: the rules MRC-REQ-020 to 035 once more, as a list and byte by byte."""
    size = len(frame)
    if size < 14 or size > 4202:
        return Drop.BAD_FRAME
    z = frame + bytes(200)

    def u16(at: int) -> int:
        return z[at] << 8 | z[at + 1]

    v6 = u16(12) == 0x86DD
    ip, udp = 14, 54 if v6 else 34
    options = not v6 and z[14] & 15 != 5
    tos = (z[14] & 15) << 4 | z[15] >> 4 if v6 else z[15]
    trimmed = tos >> 2 in (config.dscp[spec.Dscp.TRIMMED], config.dscp[spec.Dscp.TRIMMED_LASTHOP])
    is_udp = z[20] == 17 if v6 else not options and z[23] == 17 and z[20] & 0x3F == 0 and z[21] == 0
    ip_end = 54 + u16(18) if v6 else 14 + u16(16)
    length = u16(udp + 4)
    bth = udp + 8
    rows: list[tuple[Drop, bool]] = [
        (Drop.ETHERTYPE, u16(12) not in (0x86DD, 0x0800)),
        (Drop.IP_VERSION, z[14] >> 4 != (6 if v6 else 4)),
        (Drop.IP_LENGTH, not trimmed and (ip_end > size or not v6 and ip_end < 34)),
        (Drop.IP_LENGTH, not trimmed and is_udp and (length < 8 or udp + length != ip_end)),
        (Drop.IP_CHECKSUM, not v6 and not options and folded(z[14:34]) != 0xFFFF),
        (Drop.NOT_UDP, not is_udp),
        (Drop.UDP_PORT, u16(udp + 2) != config.udp_port),
        (Drop.SHORT, size < bth + 12 if trimmed else length < 24),
    ]
    for cause, failed in rows:
        if failed:
            return cause
    if not trimmed:
        end = udp + length - 4
        masked = bytearray(z[ip:end])
        if v6:
            masked[0] |= 0x0F
        ones = [1, 2, 3, 7] if v6 else [1, 8, 10, 11]
        for at in [*ones, udp - ip + 6, udp - ip + 7, bth - ip + 4]:
            masked[at] = 0xFF
        if crc32(b"\xff" * 8 + masked) != int.from_bytes(z[end : end + 4], "little"):
            return Drop.ICRC
    opcode = z[bth]
    if z[bth + 1] & 15:
        return Drop.BTH_VERSION
    if opcode not in config.known_opcodes:
        return Drop.OPCODE
    data = 0xC6 <= opcode <= 0xCB
    if trimmed:
        return None if data else Drop.TRIM_IGNORED
    headers = {0xD1: 4, 0xD8: 16, 0xD9: 36, 0xDC: 36, 0xDD: 20, 0xDE: 16}.get(opcode, 20 + 4 * (opcode in (0xC9, 0xCB)))
    headers += 4 * (data and bool(z[bth + 8] & 0x10))
    return Drop.SHORT if length < 24 + headers + (z[bth + 1] >> 4 & 3) else None
