"""The parser under load: line rate, stalls, overflow, flagged and oversize frames."""

from __future__ import annotations

import random

import pytest

from model import spec, wire
from model.spec import Drop, Opcode
from model.tests.wire_cases import SHAPES, unique_packet
from verif.wire.agents import coin
from verif.wire.parser_bench import Run, run, write


def test_mtu_and_oversize() -> None:
    """X-03, MRC-REQ-021: the largest legal frame passes at full rate; a longer one is dropped, whatever its size, and the next is right."""
    big = wire.build(write(4096))
    imm = wire.build(unique_packet(Opcode.WRITE_ONLY_IMM, 1, payload=bytes(4096)))
    assert len(imm) == spec.MAX_FRAME
    long = imm + bytes(1)
    frames = [big, imm, long, wire.build(write(4095)), long + bytes(7000), wire.build(write(3))]
    result = run(frames)
    assert result.drops == [Drop.BAD_FRAME] * 2


def test_line_rate() -> None:
    """X-12: back to back, small and large frames mixed, outputs free: not one clock of stall at the input, and short latency (X-04)."""
    rng = random.Random(12)
    frames = [wire.build(write(rng.choice((1, 2, 7, 8, 64, 300)))) for _ in range(30)]
    frames += [wire.build(unique_packet(Opcode.ACK, 0)) for _ in range(60)]
    assert run(frames).stalled == 0


def test_stalled_outputs() -> None:
    """X-01, X-07, X-10: two frames without gap and outputs stalled, then more than the buffer holds; nothing is lost, the MAC waits."""
    released = {"at": 0}

    def later() -> bool:
        released["at"] += 1
        return released["at"] > 1700

    frames = [wire.build(write(4096)), wire.build(write(4090))] + [wire.build(write(1000)) for _ in range(4)]
    result = run(frames, payload_go=later)
    assert result.stalled > 0
    result = run([wire.build(write(9)), wire.build(write(10))], desc_go=lambda: later(), payload_go=lambda: later())


def test_overflow_without_flow_control() -> None:
    """A MAC that cannot wait: what does not fit is dropped as BAD_FRAME, everything else is intact and in order."""
    frames = [wire.build(write(4096, psn=number)) for number in range(5)] + [wire.build(write(8, psn=99))]
    waited = {"n": 0}

    def later() -> bool:
        waited["n"] += 1
        return waited["n"] > 2000

    result = Run([(frame, False) for frame in frames], stallable=False, payload_go=later)
    assert result.drops and set(result.drops) == {Drop.BAD_FRAME}
    kept = [desc["psn"] for desc in result.descs]
    assert len(kept) + len(result.drops) == len(frames) and kept[:2] == [0, 1] and kept == sorted(kept)
    assert sum(word["last"] for word in result.words) == len(kept)
    assert result.counted_frames == len(frames)


def test_frames_that_the_mac_flags() -> None:
    """D-02, MRC-REQ-021: tuser, and byte enables with holes or short beats, drop the frame as BAD_FRAME; neighbours are right."""
    good = wire.build(write(20))
    Run([(good, False), (good, True), (good, False), (b"", True), (bytes(13), False), (good, False)]).check()


@pytest.mark.parametrize("seed", range(2))
def test_random_back_pressure(seed: int) -> None:
    """X-06, X-08: random gaps and stalls everywhere, good and bad frames mixed."""
    rng = random.Random(seed)
    frames = []
    for _ in range(60):
        frame = wire.build(unique_packet(*rng.choice(SHAPES), rng.randrange(50), payload=b""))
        if rng.random() < 0.6:
            frame = wire.build(write(rng.choice((1, 2, 3, 8, 11, 40, 257))))
        if rng.random() < 0.3:
            frame = bytes((*frame[:-1], frame[-1] ^ 1))
        frames.append(frame)
    run(frames, gap=coin(rng, 0.7), desc_go=coin(rng, 0.4), payload_go=coin(rng, 0.4))


