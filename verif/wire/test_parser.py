"""The parser against the golden codec: right frames, every field and every payload byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hdl.params import preset
from hdl.wire.parser import need_equal_widths
from model import spec, wire, wire_switch
from model.spec import Drop, Opcode
from model.tests.wire_cases import SHAPES, VECTORS, unique_packet
from model.wire import WireConfig
from verif.wire.agents import CONFIG
from verif.wire.parser_bench import run, write


def test_vectors() -> None:
    """R-07: the published vectors, and the RoCEv2 acknowledgement, whose opcode is not ours."""
    frames = [bytes(12) + b"\x86\xdd" + octets for octets, _ in VECTORS.values()]
    assert run(frames).drops == []


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("ipv4", [False, True])
def test_every_opcode_with_unique_fields(ipv4: bool, swap: bool) -> None:
    """R-06, MRC-REQ-003, 004, 010 to 014: each shape, several patterns, both address families and EV codings."""
    config = WireConfig(known_opcodes=CONFIG.known_opcodes, ev_swap=swap)
    ends = {"ipv4": True, "src_ip": 0x0A000001, "dst_ip": 0xC0A80102, "ev": 0x4321} if ipv4 else {}
    packets = [unique_packet(op, ts, seed, payload=bytes(range(seed)) if op in spec.DATA_OPCODES else b"", **ends)
               for op, ts in SHAPES for seed in range(4)]  # fmt: skip
    result = run([wire.build(p, config) for p in packets], config=config)
    assert set(result.drops) == {Drop.OPCODE} and len(result.drops) == 8  # the endpoint requests and responses


@pytest.mark.parametrize("ipv4", [False, True])
def test_payload_sizes_and_pads(ipv4: bool) -> None:
    """I-03, I-04, MRC-REQ-006: lengths around words and pads, with and without TSETH and immediate."""
    ends: dict[str, Any] = {"ipv4": True, "src_ip": 1, "dst_ip": 2, "ev": 5} if ipv4 else {}
    frames = []
    for opcode in (Opcode.WRITE_ONLY, Opcode.WRITE_LAST_IMM):
        for ts in (0, 1):
            frames += [wire.build(unique_packet(opcode, ts, payload=bytes(range(1, size + 1)), **ends), min_frame=60 + size % 5) for size in range(1, 26)]
    for size in (44, 45, 48, 49, 255, 256, 257, 1023, 1024):
        frames.append(wire.build(write(size, **ends)))
    assert run(frames).drops == []


def test_mutable_fields_do_not_matter_to_the_icrc() -> None:
    """I-01, MRC-REQ-008: what changes on the way may change; any other bit may not."""
    packet = write(5)
    frames = [wire.build(replace(packet, hop_limit=h, ecn=e, dscp=d)) for h in (0, 255) for e in range(4) for d in (0, 63)]
    v6, v4 = bytearray(wire.build(packet)), bytearray(wire.build(replace(packet, ipv4=True, src_ip=1, dst_ip=2, ev=3)))
    for base, places in ((v6, (15, 16, 17, 21, 60, 61, 66)), (v4, (40, 41, 46))):
        for at in places:
            frame = bytearray(base)
            frame[at] ^= 0x0F
            frames.append(bytes(frame))
    frames.append(wire_switch.remark(bytes(v4), dscp=33, ecn=1))
    assert run(frames).drops == []


def test_other_widths() -> None:
    """X-11, X-13: frames shorter than a word; what cannot be built is refused with a reason."""
    wide = preset("tiny", data_width=128, port_width=128)
    run([wire.build(write(size)) for size in (1, 6, 7, 20, 33)] + [wire.build(unique_packet(Opcode.ACK, 0))] * 3, params=wide)
    with pytest.raises(ValueError, match="choose them equal"):
        need_equal_widths(preset("full"), "parser")
