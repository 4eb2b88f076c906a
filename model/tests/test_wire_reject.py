"""What parse rejects, under which cause, in which order; trimmed packets (failure modes R-06, X-03, F-05; MRC-REQ-020..036).

``classify`` in wire_cases is a second, slow reading of the same rules: the two must agree on every frame, good or bad.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from model import spec, wire, wire_switch
from model.spec import Drop, Dscp, Opcode
from model.wire import Packet, WireConfig

from .wire_cases import SHAPES, classify, unique_packet

V4: dict[str, Any] = {"ipv4": True, "src_ip": 0x0A000001, "dst_ip": 0x0A000002, "ev": 0x1234}


def resealed(frame: bytes | bytearray, ipv4: bool = False) -> bytes:
    """The frame with a right IPv4 checksum and a right ICRC where its lengths say that it ends."""
    out = bytearray(frame)
    udp = 34 if ipv4 else 54
    if ipv4:
        out[24:26] = b"\0\0"
        out[24:26] = wire.ipv4_checksum(bytes(out[14:34])).to_bytes(2, "big")
    end = udp + int.from_bytes(out[udp + 4 : udp + 6], "big") - 4
    if udp + 20 <= end <= len(out) - 4 and out[14] >> 4 == (4 if ipv4 else 6):
        out[end : end + 4] = wire.icrc(bytes(out[14:end])).to_bytes(4, "little")
    return bytes(out)


def check(frame: bytes, config: WireConfig = wire.DEFAULT_CONFIG) -> Drop | None:
    """Parse, compare with the slow reading, return the cause (None: accepted)."""
    seen = wire.parse(frame, config)
    cause = seen if isinstance(seen, Drop) else None
    assert cause == classify(frame, config), frame.hex()
    return cause


def patched(ipv4: bool, changes: dict[int, int], seal: bool = True, opcode: Opcode = Opcode.ACK) -> bytes:
    """A good packet with some bytes (by offset in the frame) replaced, checksums put right unless ``seal`` is False."""
    frame = bytearray(wire.build(unique_packet(opcode, 0, **(V4 if ipv4 else {}))))
    for at, value in changes.items():
        frame[at] = value
    return resealed(frame, ipv4) if seal else bytes(frame)


# ACK: IPv6 82 bytes, UDP length 28 at 58; IPv4 62 bytes, total length 48 at 16, UDP length 28 at 38.
CASES = [
    (False, {}, None), (True, {}, None),
    (False, {12: 0x81, 13: 0}, Drop.ETHERTYPE), (False, {13: 0xDC}, Drop.ETHERTYPE), (True, {13: 6}, Drop.ETHERTYPE),
    (False, {14: 0x40}, Drop.IP_VERSION), (True, {14: 0x65}, Drop.IP_VERSION), (False, {12: 8, 13: 0}, Drop.IP_VERSION),
    (False, {19: 29}, Drop.IP_LENGTH), (False, {19: 27}, Drop.IP_LENGTH),
    (False, {59: 27}, Drop.IP_LENGTH), (False, {59: 29}, Drop.IP_LENGTH),
    (False, {19: 7, 59: 7}, Drop.IP_LENGTH), (False, {18: 1, 58: 1}, Drop.IP_LENGTH), (False, {19: 29, 20: 6}, Drop.IP_LENGTH),
    (True, {17: 19}, Drop.IP_LENGTH), (True, {17: 19, 23: 6}, Drop.IP_LENGTH), (True, {17: 49}, Drop.IP_LENGTH),
    (True, {17: 27, 39: 7}, Drop.IP_LENGTH), (True, {39: 29}, Drop.IP_LENGTH),
    (False, {20: 6}, Drop.NOT_UDP), (False, {20: 6, 59: 99}, Drop.NOT_UDP), (False, {20: 0}, Drop.NOT_UDP), (True, {23: 6}, Drop.NOT_UDP),
    (True, {14: 0x46}, Drop.NOT_UDP), (True, {14: 0x44}, Drop.NOT_UDP), (True, {20: 0x20}, Drop.NOT_UDP), (True, {21: 1}, Drop.NOT_UDP),
    (True, {20: 0x1F}, Drop.NOT_UDP), (True, {20: 0x80}, None), (True, {20: 0}, None), (True, {18: 9, 19: 9}, None),
    (False, {56: 0x13, 57: 0x6B}, Drop.UDP_PORT), (True, {37: 0xB8}, Drop.UDP_PORT),
    (False, {19: 8, 59: 8}, Drop.SHORT), (False, {19: 23, 59: 23}, Drop.SHORT), (True, {17: 43, 39: 23}, Drop.SHORT),
    (False, {19: 24, 59: 24}, Drop.SHORT), (False, {19: 27, 59: 27}, Drop.SHORT), (False, {63: 0x10}, Drop.SHORT),
    (False, {63: 0x01}, Drop.BTH_VERSION), (True, {43: 0x0F}, Drop.BTH_VERSION),
    (False, {62: 0x11}, Drop.OPCODE), (False, {62: 0xC5}, Drop.OPCODE), (False, {62: 0xDB}, Drop.OPCODE), (False, {62: 0xDC}, Drop.SHORT),
    (False, {70: 0x10}, None),  # BTH.ts on an ACK is ignored
]  # fmt: skip


@pytest.mark.parametrize(("ipv4", "changes", "cause"), CASES)
def test_each_cause(ipv4: bool, changes: dict[int, int], cause: Drop | None) -> None:
    """One defect, everything else in order.

    F-05, MRC-REQ-022, MRC-REQ-023, MRC-REQ-024, MRC-REQ-026, MRC-REQ-027, MRC-REQ-028, MRC-REQ-029, MRC-REQ-033, MRC-REQ-034, MRC-REQ-035.
    """
    assert check(patched(ipv4, changes)) == cause


def test_checksums_that_were_not_put_right() -> None:
    """MRC-REQ-026, MRC-REQ-028, MRC-REQ-030: IPv4 checksum and ICRC; the UDP checksum is ignored."""
    assert check(patched(True, {25: 0x55}, seal=False)) == Drop.IP_CHECKSUM
    for at in [*range(54, 56), *range(62, 66), *range(67, 82)]:
        frame = bytearray(patched(False, {}))
        frame[at] ^= 1
        assert check(bytes(frame)) == Drop.ICRC
    assert check(patched(False, {60: 0x12, 61: 0x34, 66: 0xFF}, seal=False)) is None


def test_order_of_the_checks() -> None:
    """F-05, MRC-REQ-020: with every defect present the first cause counts; mended one by one, the next."""
    defects: list[tuple[Drop, dict[int, int]]] = [
        (Drop.ETHERTYPE, {13: 0x99}), (Drop.IP_VERSION, {14: 0x55}), (Drop.IP_LENGTH, {17: 0xFF}), (Drop.IP_CHECKSUM, {25: 0x11}),
        (Drop.UDP_PORT, {36: 0}), (Drop.ICRC, {61: 0x77}), (Drop.BTH_VERSION, {43: 7}), (Drop.OPCODE, {42: 0xC0}),
    ]  # fmt: skip
    for index, (cause, _) in enumerate(defects):
        frame = bytearray(wire.build(unique_packet(Opcode.ACK, 0, **V4)))
        for _, changes in defects[index:]:
            for at, value in changes.items():
                frame[at] = value
        if cause > Drop.IP_CHECKSUM:
            frame[24:26] = b"\0\0"
            frame[24:26] = wire.ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
        if cause > Drop.ICRC:
            frame = bytearray(resealed(frame, ipv4=True))
        assert check(bytes(frame)) == cause


def test_known_opcodes_and_other_port() -> None:
    """MRC-REQ-028, MRC-REQ-034: a side accepts the opcodes it is told to, on the port it is told to."""
    config = WireConfig(udp_port=4971, known_opcodes=frozenset(Opcode) - {Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_RESPONSE})
    for opcode, ts in SHAPES:
        frame = wire.build(unique_packet(opcode, ts, udp_dport=4971))
        known = opcode in config.known_opcodes
        assert check(frame, config) == (None if known else Drop.OPCODE)
        assert check(frame) == Drop.UDP_PORT


@pytest.mark.parametrize(("opcode", "ts"), SHAPES)
def test_truncated_at_every_byte(opcode: Opcode, ts: int) -> None:
    """Cut anywhere, lengths left or cut as well, ICRC put right: never accepted short, never an exception.

    R-06, MRC-REQ-020, MRC-REQ-021, MRC-REQ-022, MRC-REQ-023, MRC-REQ-024, MRC-REQ-025.
    """
    payload = bytes(range(1, 10)) if opcode in spec.DATA_OPCODES else b""
    for ipv4 in (False, True):
        packet = unique_packet(opcode, ts, payload=payload, **(V4 if ipv4 else {}))
        frame, udp = wire.build(packet), 34 if ipv4 else 54
        headers = udp + 20 + spec.extension_bytes(opcode, ts)
        for size in range(len(frame)):
            assert check(frame[:size]) == (Drop.BAD_FRAME if size < 14 else Drop.IP_VERSION if size == 14 else Drop.IP_LENGTH)
            if size < udp + 8:
                continue
            cut = bytearray(frame[:size])
            cut[udp + 4 : udp + 6] = (size - udp).to_bytes(2, "big")
            at, length = (16, size - 14) if ipv4 else (18, size - udp)
            cut[at : at + 2] = length.to_bytes(2, "big")
            assert check(resealed(cut, ipv4)) == (Drop.SHORT if size < headers + packet.pad + 4 else None)
        assert check(frame) is None


def test_ethernet_padding() -> None:
    """MRC-REQ-025: bytes behind the IP packet, zero or not, change nothing, up to the largest frame (X-03, MRC-REQ-021)."""
    packet = unique_packet(Opcode.NACK, 0)
    frame = wire.build(packet)
    for extra in (1, 3, 4, 60, spec.MAX_FRAME - len(frame)):
        for fill in (b"\0", b"\xa5"):
            assert wire.parse(frame + fill * extra) == packet
    assert check(frame.ljust(spec.MAX_FRAME + 1, b"\0")) == Drop.BAD_FRAME
    assert check(b"") == Drop.BAD_FRAME


def test_excess_and_wrong_pad() -> None:
    """MRC-REQ-036: bytes behind a SACK's headers are kept apart, a wrong pad of data is told, neither is a stateless drop."""
    packet = replace(unique_packet(Opcode.SACK, 0), payload=b"next")
    assert wire.parse(wire.build(packet)) == packet
    for length in range(3, 9):
        for error in range(4):
            packet = Packet(opcode=Opcode.WRITE_ONLY, payload=b"z" * length, pad_error=error)
            assert wire.parse(wire.build(packet)) == packet
            assert (error == 0) == ((len(packet.payload) + packet.pad) % 4 == 0)


@pytest.mark.parametrize(("opcode", "ts"), [shape for shape in SHAPES if shape[0] in spec.DATA_OPCODES])
@pytest.mark.parametrize("ipv4", [False, True])
def test_trimmed(opcode: Opcode, ts: int, ipv4: bool) -> None:
    """MRC-REQ-031: trimmed behind any byte of the headers, lengths old or new; what is there reads right, the rest as 0."""
    packet = unique_packet(opcode, ts, payload=bytes(range(1, 98)), **(V4 if ipv4 else {}))
    frame, headers = wire.build(packet), spec.extension_bytes(opcode, ts)
    at = (34 if ipv4 else 54) + 20
    for keep in range(headers + 1):
        zeroed = wire.parse(resealed(frame[: at + keep] + bytes(headers - keep) + frame[at + headers :], ipv4))
        assert isinstance(zeroed, Packet)
        for last_hop in (False, True):
            for cut_lengths in (False, True):
                cut = wire_switch.trim(frame, last_hop, keep, cut_lengths)
                dscp, trimmed = (Dscp.TRIMMED_LASTHOP, wire.TRIMMED_LASTHOP) if last_hop else (Dscp.TRIMMED, wire.TRIMMED)
                assert check(cut) is None
                assert wire.parse(cut) == replace(zeroed, dscp=dscp, trimmed=trimmed, payload=b"", pad_error=packet.pad)
    for size in range(14, at):
        cut = wire_switch.trim(frame)[:size]
        assert check(cut) is not None
        assert size < at - 12 or check(cut) == Drop.SHORT
    whole = wire.parse(wire_switch.trim(frame, cut_lengths=True))
    assert isinstance(whole, Packet) and wire.build(whole) == wire_switch.trim(frame, cut_lengths=True)


def test_trimmed_still_needs_the_other_checks() -> None:
    """MRC-REQ-031, MRC-REQ-032: version, IPv4 checksum, port, opcode are checked; packets without data are ignored."""
    trimmed = bytearray(wire_switch.trim(wire.build(unique_packet(Opcode.WRITE_ONLY, 1, payload=b"x", **V4))))
    for at, cause in ((14, Drop.IP_VERSION), (25, Drop.IP_CHECKSUM)):
        bad = bytearray(trimmed)
        bad[at] ^= 0x10
        assert check(bytes(bad)) == cause
    for at, value, cause in ((37, 0, Drop.UDP_PORT), (43, 1, Drop.BTH_VERSION), (42, 0xC0, Drop.OPCODE), (42, 0xDC, Drop.TRIM_IGNORED)):
        bad = bytearray(trimmed)
        bad[at] = value
        assert check(bytes(bad)) == cause
    with pytest.raises(ValueError, match="not trimmed"):
        wire_switch.trim(wire.build(Packet(opcode=Opcode.ACK)))


def test_fuzz() -> None:
    """R-06, I-01, MRC-REQ-020: 50 000 damaged frames: parse never raises, never differs from the slow reading, and all causes occur.

    The slow reading checks the ICRC itself, so nothing with a wrong one is accepted.
    """
    rng = random.Random("fuzz")
    good = [wire.build(unique_packet(op, ts, 3, payload=bytes(9), **(V4 if v4 else {}))) for op, ts in SHAPES for v4 in (False, True)]
    seen: Counter[Drop | None] = Counter()
    for index in range(50_000):
        frame = bytearray(rng.choice(good))
        ipv4 = frame[12] == 8
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            at = rng.randrange(12, min(len(frame), rng.choice((24, 78, 200))))
            frame[at] = rng.choice((frame[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
        match index % 5:
            case 0:
                frame = frame[: rng.randrange(len(frame) + 1)]
            case 1 if len(frame) > 74:
                frame = bytearray(resealed(frame, ipv4))
            case 2:
                frame += rng.randbytes(rng.randrange(8))
            case 3 if index % 25 == 3:
                frame = bytearray(rng.randbytes(rng.randrange(300)))
        if index % 4 == 0 and len(frame) > 34:
            frame = bytearray(wire_switch.remark(bytes(frame), dscp=rng.choice((0, 12, 16, 46))))
        seen[check(bytes(frame))] += 1
    stateless = [cause for cause in Drop if cause <= Drop.SHORT] + [Drop.TRIM_IGNORED, None]
    assert set(seen) == set(stateless) and min(seen.values()) > 30, seen
