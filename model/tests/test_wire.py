"""The byte codec: vectors, field round trips, ICRC, checksums, EV coding, pad.

Failure modes R-06, R-07, I-01, I-03, I-04, I-06, I-07, X-03.

What parse rejects, and how it classifies, is in test_wire_reject.py.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib import roce
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from model import spec, wire, wire_switch
from model.spec import Drop, Dscp, Opcode
from model.wire import Packet, WireConfig

from .wire_cases import DST, ROCE_ACK, SHAPES, SRC, VECTORS, folded, packets, unique_packet

IP_AT = spec.ETH_BYTES


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str) -> None:
    """R-07, MRC-REQ-003, MRC-REQ-004, MRC-REQ-007, MRC-REQ-011: the published vectors byte for byte, both ways."""
    octets, packet = VECTORS[name]
    frame = wire.build(packet)
    assert frame[IP_AT:].hex() == octets.hex()
    assert wire.parse(frame) == packet
    assert packet.size == len(octets)  # MRC-REQ-005


def test_packet_has_the_fields_of_the_tables() -> None:
    """One fact, one place: Packet holds the tables' fields, and besides them only what this list names."""
    table = {field.name for header in spec.HEADERS.values() for field in header if field.name and not field.fixed}
    extra = {
        "smac", "dmac", "ipv4", "src_ip", "dst_ip", "dscp", "ecn", "hop_limit", "ev", "udp_dport", "payload", "trimmed", "pad_error",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(Packet)} == table - {"pad"} | extra


@pytest.mark.parametrize(("opcode", "ts"), SHAPES)
def test_round_trip_of_every_field(opcode: Opcode, ts: int) -> None:
    """With another value in each field, several patterns, both address families; the length is the table's.

    R-06, MRC-REQ-003, MRC-REQ-004, MRC-REQ-010.
    """
    for seed in range(8):
        for ipv4 in (False, True):
            packet = unique_packet(opcode, ts, seed, ipv4=ipv4, src_ip=seed + 1, dst_ip=99, ev=0x4321)
            frame = wire.build(packet)
            assert wire.parse(frame) == packet
            assert len(frame) == 14 + (20 if ipv4 else 40) + 8 + 12 + spec.extension_bytes(opcode, ts) + 4


@settings(max_examples=300, deadline=None)
@given(packets(), st.booleans())
def test_round_trip_of_random_packets(packet: Packet, swap: bool) -> None:
    """R-06, MRC-REQ-011, MRC-REQ-012, MRC-REQ-014: parse undoes build, under either EV coding."""
    config = WireConfig(ev_swap=swap)
    assert wire.parse(wire.build(packet, config), config) == packet


def test_reserved_and_fixed_bits_are_zero_or_default_and_ignored() -> None:
    """MRC-REQ-004: reserved and fixed bits are sent as the tables say and, set otherwise by a peer, change nothing."""
    for opcode, ts in SHAPES:
        packet = unique_packet(opcode, ts)
        frame = bytearray(wire.build(packet))
        base = IP_AT + 48
        for name in ("BTH", *spec.extensions(opcode, ts)):
            size = spec.header_bytes(name)
            number, position, flip = int.from_bytes(frame[base : base + size], "big"), 8 * size, 0
            for field in spec.HEADERS[name]:
                position -= field.bits
                ones = (1 << field.bits) - 1
                if field.fixed or not field.name:
                    assert number >> position & ones == field.default, (opcode, name, field)
                    flip |= ones << position if field.name != "tver" else 0
            frame[base : base + size] = (number ^ flip).to_bytes(size, "big")
            base += size
        frame[-4:] = wire.icrc(bytes(frame[IP_AT:-4])).to_bytes(4, "little")
        assert wire.parse(bytes(frame)) == packet


# --- ICRC --------------------------------------------------------------------------------------------------------------------------
def scapy_icrc(packet: Any) -> bytes:
    """The ICRC that scapy.contrib.roce gives to the IP packet in ``packet``, whose last 4 bytes are a place for it."""
    ip: Any = IPv6(packet) if packet[0] >> 4 == 6 else IP(packet)
    body = bytes(ip[UDP].payload)
    ip[UDP].remove_payload()
    ip = ip / roce.BTH(body[:12] + b"\0\0\0\0") / Raw(body[12:-4])
    return bytes(ip[roce.BTH].compute_icrc(b""))


@settings(max_examples=200, deadline=None)
@given(packets())
def test_icrc_equals_scapy_for_mrc(packet: Packet) -> None:
    """R-07, MRC-REQ-008, MRC-REQ-009: for random packets of every MRC opcode, IPv6 and IPv4."""
    octets = wire.build(packet)[IP_AT:]
    assert octets[-4:] == scapy_icrc(octets) != bytes(4)


@pytest.mark.parametrize("make", [
    lambda: IPv6(src=str(IPv6Address(SRC)), dst=str(IPv6Address(DST)), fl=0x12345),
    lambda: IP(src=str(IPv4Address(1)), dst=str(IPv4Address(2)), tos=3, ttl=7),
])  # fmt: skip
def test_icrc_equals_scapy_for_roce(make: Any) -> None:
    """R-07, MRC-REQ-008: for RoCEv2 packets that scapy builds, acknowledgement and writes of all sizes mod 4."""
    for size in range(40):
        packet = bytes(make() / UDP(sport=1, chksum=0) / roce.BTH(opcode=0x0A, psn=size, dqpn=5, fecn=1, becn=0) / Raw(bytes(range(size))))
        assert wire.icrc(packet[:-4]).to_bytes(4, "little") == packet[-4:]
    assert wire.icrc(ROCE_ACK[:-4]).to_bytes(4, "little") == ROCE_ACK[-4:]


@pytest.mark.parametrize("ipv4", [False, True])
def test_icrc_ignores_mutable_fields_and_nothing_else(ipv4: bool) -> None:
    """I-01, MRC-REQ-008: flipping a bit changes the ICRC exactly when no router may change that bit."""
    octets = wire.build(unique_packet(Opcode.WRITE_ONLY_IMM, 1, ipv4=ipv4, src_ip=1, dst_ip=2, ev=7, payload=bytes(range(5))))[IP_AT:-4]
    udp = 20 if ipv4 else 40
    mutable = {range(8, 16), range(64, 72), range(80, 96)} if ipv4 else {range(4, 32), range(56, 64)}
    mutable |= {range(8 * (udp + 6), 8 * (udp + 8)), range(8 * (udp + 12), 8 * (udp + 13))}
    right = wire.icrc(octets)
    for bit in range(4, 8 * len(octets)):  # the version nibble selects the rule
        flipped = bytearray(octets)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        assert (wire.icrc(bytes(flipped)) == right) == any(bit in bits for bits in mutable), bit


def test_mutable_fields_swept_through_parse() -> None:
    """I-01: packets that switches re-marked in any way are accepted, with the new values, and the same otherwise."""
    rng = random.Random("I-01")
    for ipv4 in (False, True):
        packet = unique_packet(Opcode.SACK, 0, ipv4=ipv4, src_ip=1, dst_ip=2, ev=3)
        frame = wire.build(packet)
        for _ in range(300):
            dscp, ecn = rng.choice([v for v in range(64) if v not in (Dscp.TRIMMED, Dscp.TRIMMED_LASTHOP)]), rng.randrange(4)
            assert wire.parse(wire_switch.remark(frame, dscp=dscp, ecn=ecn)) == replace(packet, dscp=dscp, ecn=ecn)
            if not ipv4:  # the top of the flow label, which others may use, stays
                assert wire_switch.remark(frame[:15] + bytes([frame[15] | 0x0B]) + frame[16:], dscp=dscp)[15] & 15 == 0x0B
            hops = bytearray(frame)
            hops[22 if ipv4 else 21] = rng.randrange(256)
            hops[(34 if ipv4 else 54) + 6] = rng.randrange(256)  # UDP checksum
            assert wire.parse(wire_switch.remark(bytes(hops), ecn=packet.ecn)) == replace(packet, hop_limit=hops[22 if ipv4 else 21])


def test_icrc_of_a_stump_is_an_error() -> None:
    """icrc refuses a packet that ends within the BTH."""
    with pytest.raises(ValueError, match="at least 60 bytes"):
        wire.icrc(ROCE_ACK[:59])


# --- IPv4 checksum, EV, pad, sizes -------------------------------------------------------------------------------------------------
def test_ipv4_checksum_carries() -> None:
    """I-06, MRC-REQ-026: headers whose sums fold 0, 1 and 2 times are accepted; each flipped bit is rejected."""
    rng = random.Random("I-06")
    seen: dict[int, Packet] = {}
    small = Packet(opcode=Opcode.ACK, ipv4=True, hop_limit=0, src_ip=1, dst_ip=1)
    candidates = [small, *(replace(small, src_ip=rng.getrandbits(32), dst_ip=rng.getrandbits(32), hop_limit=64) for _ in range(500))]
    high = replace(small, src_ip=0xFFFF0000, dst_ip=0xFFFFFFFF, hop_limit=255)
    header = wire.build(high)[IP_AT : IP_AT + 20]
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2) if i != 10)
    candidates.append(replace(high, src_ip=0xFFFF0000 | -1 - total & 0xFFFF))  # low half of the sum all ones: the first carry makes another
    for packet in candidates:
        header = wire.build(packet)[IP_AT : IP_AT + 20]
        assert folded(header) == 0xFFFF
        total, folds = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2) if i != 10), 0
        while total > 0xFFFF:
            total, folds = (total & 0xFFFF) + (total >> 16), folds + 1
        seen.setdefault(folds, packet)
    assert {0, 1, 2} <= set(seen)
    for packet in seen.values():
        frame = wire.build(packet)
        assert wire.parse(frame) == packet
        for bit in [*range(8, 16), *range(32, 160)]:
            bad = bytearray(frame)
            bad[IP_AT + bit // 8] ^= 0x80 >> bit % 8
            assert wire.parse(bytes(bad)) == Drop.IP_CHECKSUM, bit


def test_ev_coding() -> None:
    """Which half travels where; the top of the flow label is 0 when sent and ignored when received.

    MRC-REQ-011, MRC-REQ-012, MRC-REQ-013, MRC-REQ-014.
    """
    ev = 0xABCD1234
    assert wire.ev_to_ports(ev) == (0xABCD, 0x1234) and wire.ev_to_ports(ev, swap=True) == (0x1234, 0xABCD)
    assert wire.ports_to_ev(0xABCD, 0xF1234) == ev and wire.ports_to_ev(0x1234, 0xFABCD, swap=True) == ev
    for swap in (False, True):
        config = WireConfig(ev_swap=swap)
        assert wire.ev_to_ports(ev, swap, ipv4=True) == (0x1234, 0) and wire.ports_to_ev(0x1234, 0, swap, ipv4=True) == 0x1234
        frame = bytearray(wire.build(Packet(opcode=Opcode.ACK, ev=ev), config))
        assert (frame[15:18].hex(), frame[54:56].hex()) == (("00abcd", "1234") if swap else ("001234", "abcd"))
        frame[15] |= 0x0F
        seen = wire.parse(bytes(frame), config)
        assert isinstance(seen, Packet) and seen.ev == ev
        seen = wire.parse(wire.build(Packet(opcode=Opcode.ACK, ev=ev, ipv4=True), config), config)
        assert isinstance(seen, Packet) and seen.ev == 0x1234


@pytest.mark.parametrize("length", range(1, 9))
def test_pad(length: int) -> None:
    """I-03, I-04, MRC-REQ-006: the pad completes a multiple of 4, is zero, precedes the ICRC, counts in lengths, is not payload."""
    packet = Packet(opcode=Opcode.WRITE_ONLY, payload=b"\xee" * length, dmalen=length)
    frame = wire.build(packet, min_frame=130)
    pad = {0: 0, 1: 3, 2: 2, 3: 1}[length % 4]
    end = 14 + 40 + 8 + 12 + 20 + length
    assert packet.pad == pad and frame[63] >> 4 & 3 == pad and frame[end : end + pad] == bytes(pad)
    assert int.from_bytes(frame[18:20], "big") == int.from_bytes(frame[58:60], "big") == packet.udp_len == end - 54 + pad + 4
    assert frame[end + pad : end + pad + 4] == wire.icrc(frame[14 : end + pad]).to_bytes(4, "little")
    assert len(frame) == 130 and wire.parse(frame) == packet


def test_every_length_and_the_longest_frame() -> None:
    """All payload lengths up to 300 and around every MTU; the longest legal frame passes, one more does not.

    I-07, X-03, MRC-REQ-005, MRC-REQ-021.
    """
    near = [mtu + step for mtu in spec.MTUS for step in (-1, 0)]
    for length in [*range(301), *near]:
        packet = unique_packet(Opcode.WRITE_LAST_IMM, 1, length, payload=random.Random(length).randbytes(length))
        frame = wire.build(packet)
        assert wire.parse(frame) == packet
        assert packet.size == len(frame) - 14
    assert len(frame) == spec.MAX_FRAME
    assert wire.parse(frame + b"\0") == Drop.BAD_FRAME
    with pytest.raises(ValueError, match="exceeds"):
        wire.build(replace(packet, payload=bytes(spec.MTUS[-1] + 1)))


@pytest.mark.parametrize("changes", [
    {"psn": 1 << 24}, {"psn": -1}, {"opcode": 0xC5}, {"ts": 2}, {"dscp": 64}, {"ecn": 4}, {"ev": 1 << 32}, {"hop_limit": 256},
    {"src_ip": 1 << 128}, {"smac": 1 << 48}, {"ipv4": True, "dst_ip": 1 << 32}, {"udp_dport": 1 << 16}, {"pad_error": 4},
    {"opcode": Opcode.SACK, "sack_offset": 1 << 15}, {"opcode": Opcode.SACK, "ack_psn_offset": -(1 << 15) - 1},
])  # fmt: skip
def test_build_refuses_what_does_not_fit(changes: dict[str, Any]) -> None:
    """A value wider than its field is an error of the caller, never cut silently."""
    with pytest.raises(ValueError):
        wire.build(replace(Packet(), **changes))


def test_probe_id_shares_the_place_of_the_offset() -> None:
    """MRC-REQ-010: with pr = 1 the field is an unsigned probe id, with pr = 0 a signed offset."""
    seen = wire.parse(wire.build(Packet(opcode=Opcode.SACK, pr=1, probe_id=0xFFFE)))
    assert isinstance(seen, Packet) and (seen.probe_id, seen.ack_psn_offset) == (0xFFFE, 0)
    seen = wire.parse(wire.build(Packet(opcode=Opcode.SACK, ack_psn_offset=-2)))
    assert isinstance(seen, Packet) and (seen.probe_id, seen.ack_psn_offset) == (0, -2)


def test_traffic_classes() -> None:
    """MRC-REQ-015, MRC-REQ-016: the class of each packet, and configurations that cannot work."""
    for opcode in Opcode:
        for rtx in (0, 1):
            trims, plain = wire.traffic_class(opcode, rtx), wire.traffic_class(opcode, rtx, can_trim=False)
            if opcode in spec.DATA_OPCODES:
                assert (trims, plain) == (Dscp.TRIMMABLE_RETX if rtx else Dscp.TRIMMABLE, Dscp.NO_TRIM)
            else:
                assert (trims, plain) == ((Dscp.TRIMMABLE, Dscp.NO_TRIM) if opcode == Opcode.PROBE else (Dscp.CONTROL,) * 2)
    good = dict(wire.DEFAULT_CONFIG.dscp)
    for bad in ({**good, Dscp.CONTROL: 64}, {**good, Dscp.TRIMMED: good[Dscp.CONTROL]}, {Dscp.CONTROL: 1}):
        with pytest.raises(ValueError):
            WireConfig(dscp=bad)
    for changes in ({"udp_port": 0}, {"hop_limit": 256}, {"known_opcodes": frozenset({0x11})}):
        with pytest.raises(ValueError):
            WireConfig(**changes)
