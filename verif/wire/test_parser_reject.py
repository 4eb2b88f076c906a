"""The parser against the golden codec: cut, trimmed, corrupted frames get the same verdict."""

from __future__ import annotations

import random
from typing import Any

import pytest

from model import spec, wire, wire_switch
from model.spec import Drop, Opcode
from model.tests.wire_cases import SHAPES, unique_packet
from verif.wire.parser_bench import run, write


@pytest.mark.parametrize("ipv4", [False, True])
def test_cut_at_every_byte(ipv4: bool) -> None:
    """MRC-REQ-020: a frame cut at every byte, trimmed or not, gets the model's verdict; the next good frame works."""
    ends: dict[str, Any] = {"ipv4": True, "src_ip": 1, "dst_ip": 2, "ev": 5} if ipv4 else {}
    packet = unique_packet(Opcode.WRITE_LAST_IMM, 1, payload=bytes(range(11)), **ends)
    whole = wire.build(packet)
    marked = [wire_switch.remark(whole, dscp=dscp) for dscp in (spec.Dscp.TRIMMED, spec.Dscp.TRIMMED_LASTHOP)]
    frames = [whole[:size] for size in range(1, len(whole) + 1)] + [frame[:size] for frame in marked for size in range(14, len(whole) + 1)]
    assert set(run([*frames, whole]).drops) >= {Drop.BAD_FRAME, Drop.IP_VERSION, Drop.IP_LENGTH, Drop.SHORT}


@pytest.mark.parametrize("ipv4", [False, True])
def test_trimmed(ipv4: bool) -> None:
    """MRC-REQ-031, 032: trimmed at every place behind the BTH, lengths original or cut; trimmed packets without data are ignored."""
    ends: dict[str, Any] = {"ipv4": True, "src_ip": 1, "dst_ip": 2, "ev": 5} if ipv4 else {}
    frames = []
    for opcode in (Opcode.WRITE_FIRST, Opcode.WRITE_ONLY_IMM):
        whole = wire.build(unique_packet(opcode, 1, payload=bytes(range(50)), **ends))
        for keep in range(29):
            frames.append(wire_switch.trim(whole, last_hop=bool(keep & 1), keep=keep, cut_lengths=bool(keep & 2)))
            frames.append(frames[-1].ljust(60 + keep, b"\x5a"))
    for opcode in (Opcode.SACK, Opcode.PROBE, Opcode.ENDPOINT_REQUEST):
        frames.append(wire_switch.remark(wire.build(unique_packet(opcode, 0, **ends)), dscp=spec.Dscp.TRIMMED))
    assert run(frames).drops == [Drop.TRIM_IGNORED, Drop.TRIM_IGNORED, Drop.OPCODE]


def refill(frame: bytearray) -> bytes:
    """The frame with a right ICRC at its end, and a right IPv4 checksum, after other bytes were changed."""
    if frame[12:14] == b"\x08\x00" and frame[14] & 15 == 5:
        frame[24:26] = b"\0\0"
        frame[24:26] = wire.ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    frame[-4:] = wire.icrc(bytes(frame[14:-4])).to_bytes(4, "little")
    return bytes(frame)


@pytest.mark.parametrize("ipv4", [False, True])
def test_single_byte_corruptions(ipv4: bool) -> None:
    """MRC-REQ-020 to 035: every header byte in turn changed, with and without the checksums put right again."""
    ends: dict[str, Any] = {"ipv4": True, "src_ip": 1, "dst_ip": 2, "ev": 5} if ipv4 else {}
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    whole = wire.build(unique_packet(Opcode.WRITE_ONLY, 1, payload=bytes(range(5)), **ends))
    frames = []
    for at in range(12, len(whole)):
        for again in (False, True):
            frame = bytearray(whole)
            frame[at] ^= rng.randrange(1, 256)
            frames.append(refill(frame) if again and at < len(whole) - 4 else bytes(frame))
    for opcode in range(0xC0, 0xE0):  # every opcode of the transport, also with a pad that does not fit its length
        frame = bytearray(whole)
        frame[42 if ipv4 else 62] = opcode
        frame[43 if ipv4 else 63] |= 0x30
        frames.append(refill(frame))
    for size in range(16, 44):  # short packets: every length around the BTH and the extension headers
        frame = bytearray(whole[: (34 if ipv4 else 54) + 8 + size])
        udp = len(frame) - (34 if ipv4 else 54)
        frame[18:20] = (udp + 20).to_bytes(2, "big") if ipv4 else udp.to_bytes(2, "big")
        if ipv4:
            frame[18:20], frame[16:18] = whole[18:20], (udp + 20).to_bytes(2, "big")
        at = 38 if ipv4 else 58
        frame[at : at + 2] = udp.to_bytes(2, "big")
        frames.append(refill(frame))
    drops = run(frames).drops
    want = {Drop.ETHERTYPE, Drop.IP_VERSION, Drop.IP_LENGTH, Drop.NOT_UDP, Drop.UDP_PORT, Drop.ICRC, Drop.BTH_VERSION, Drop.OPCODE, Drop.SHORT}
    assert set(drops) >= want | ({Drop.IP_CHECKSUM} if ipv4 else set())


def test_random_garbage() -> None:
    """MRC-REQ-020: mutations of good frames at random places, as the model judges them; seeded."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    frames = []
    for _ in range(150):
        ends: dict[str, Any] = {"ipv4": True, "src_ip": 1, "dst_ip": 2, "ev": 5} if rng.random() < 0.5 else {}
        op, ts = rng.choice(SHAPES)
        frame = bytearray(wire.build(unique_packet(op, ts, rng.randrange(99), payload=rng.randbytes(rng.randrange(20)), **ends)))
        for _ in range(rng.randrange(3)):
            frame[rng.randrange(12, len(frame))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            frame = bytearray(refill(frame))
        frames.append(bytes(frame[: rng.randrange(1, len(frame))] if rng.random() < 0.2 else frame) + rng.randbytes(rng.choice((0, 0, 1, 9))))
    run(frames)


def test_ipv4_checksum_carries() -> None:
    """I-06, MRC-REQ-026: headers whose sum folds with 0, 1 and 2 carries pass; one flipped bit is refused."""
    rng = random.Random(6)
    frames = []
    for src, dst in ((0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0x0001FFFE, 0), *((rng.getrandbits(32), rng.getrandbits(32)) for _ in range(40))):
        frame = bytearray(wire.build(write(4, ipv4=True, src_ip=src, dst_ip=dst, ev=1)))
        frames.append(bytes(frame))
        frame[rng.choice((15, 22, 24, 26, 33))] ^= 1 << rng.randrange(8)
        frames.append(bytes(frame))
    assert Drop.IP_CHECKSUM in run(frames).drops


