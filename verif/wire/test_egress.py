"""The builder against the golden codec: every frame byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from hdl.params import preset
from hdl.wire.headers import KNOWN_OPCODES
from model import spec
from model.spec import Dscp, Opcode
from model.wire import WireConfig
from verif.wire.agents import CONFIG
from verif.wire.egress_bench import Bench, outgoing, run, simulate

ANSWERS = (Opcode.SACK, Opcode.NACK, Opcode.ACK)
REQUESTS = tuple(op for op in KNOWN_OPCODES if op not in ANSWERS)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("ipv4", [False, True])
def test_every_opcode_with_unique_fields(ipv4: bool, swap: bool) -> None:
    """R-06, R-07, MRC-REQ-003 to 016: headers, addresses of the plane, classes, checksums, pad, ICRC; all-zero fields appear in none of it."""
    dscp = {cls: 63 - 5 * i for i, cls in enumerate(Dscp)}
    config = WireConfig(known_opcodes=CONFIG.known_opcodes, ev_swap=swap, udp_port=4793, hop_limit=77, dscp=dscp)
    requests = [(outgoing(op, seed % 2, seed % 2, seed, ipv4=ipv4, config=config), seed % 2, seed % 2) for seed in range(3) for op in REQUESTS]
    answers = [(outgoing(op, seed % 2, seed % 2, seed, ipv4=ipv4, config=config), seed % 2, seed % 2) for seed in range(3) for op in ANSWERS]
    run(requests, answers, config=config, ipv4=(ipv4, ipv4))


@pytest.mark.parametrize("ipv4", [False, True])
def test_payload_sizes_and_pads(ipv4: bool) -> None:
    """I-03, I-07, MRC-REQ-006: every length around a word and a pad, with and without immediate; noise behind the payload does not leave."""
    sizes = [*range(1, 18), 44, 45, 48, 49, 255, 256, 257]
    requests = []
    for size in sizes:
        payload = bytes((3 * i + size) & 0xFF for i in range(size))
        op = Opcode.WRITE_ONLY_IMM if size % 2 else Opcode.WRITE_MIDDLE
        requests.append((outgoing(op, 0, 0, ipv4=ipv4, payload=payload, psn=size), 0, 0))
        if size < 9:
            op = Opcode.WRITE_FIRST if size % 2 else Opcode.WRITE_LAST_IMM
            requests.append((outgoing(op, 1, 0, ipv4=ipv4, payload=payload, psn=1000 + size), 1, 0))
    run(requests, [], ipv4=(ipv4, ipv4))


def test_longest_frames() -> None:
    """X-03: MTU - 1 and MTU, the longest frame of all included; room covers them."""
    requests = [(outgoing(Opcode.WRITE_ONLY_IMM, 0, 0, payload=bytes(i & 0xFF for i in range(size)), psn=size), 0, 0) for size in (4095, 4096)]
    bench = run(requests, [])
    assert max(map(len, bench.frames(0))) == spec.MAX_FRAME


def test_timestamp_is_never_zero() -> None:
    """MRC-REQ-004: a tick whose low half is 0 is sent as 1; the departure reports what the frame carries (checked by the bench)."""
    requests = [(outgoing(Opcode.PROBE, 0, 0, psn=number), 0, 0) for number in range(4)]
    bench = Bench(tick_runs=False)

    async def drive(ctx: Any) -> None:
        await bench.configure(ctx)
        for tick, item in zip((0, 0x5_0000, 0x5_0001, 0x1_FFFF), requests, strict=True):
            bench.tick_start = tick
            await ctx.tick()
            await bench.requests(ctx, [item])
            await bench.quiet(ctx, 40)

    simulate(bench, drive)
    bench.check(requests, [])
    assert [depart["tick"] for depart in bench.departs] == [1, 1, 1, 0xFFFF]


def test_other_width() -> None:
    """X-11: 128 bits inside and outside."""
    wide = preset("tiny", data_width=128, port_width=128)
    requests = [(outgoing(Opcode.WRITE_ONLY, 0, 0, payload=bytes(range(size)), psn=size), 0, 0) for size in (1, 6, 7, 16, 30, 33)]
    run(requests, [(outgoing(op, 0, 0), 0, 0) for op in ANSWERS], params=wide)
