"""The send path when something fails: host memory errors, ports that go down."""

from __future__ import annotations

import random
from typing import Any

import pytest

from model import wire
from model.spec import Opcode
from model.wire import Packet
from verif.wire.agents import coin
from verif.wire.egress_bench import Bench, data, outgoing, simulate


async def frames_until_full(ctx: Any, bench: Bench) -> int:
    """How many frames of 256 bytes port 0 accepts until it has no room for a longest frame; nothing may leave meanwhile."""
    count = 0
    while True:
        for _ in range(70):
            await ctx.tick()
        if not ctx.get(bench.dut.room_req[0]):
            return count
        await bench.requests(ctx, [data(256, 0, count)])
        count += 1


@pytest.mark.parametrize("kind", ["error", "short", "long"])
def test_host_memory_error(kind: str) -> None:
    """An error from host memory, or payload that does not match its descriptor: no frame, a departure that says so; room comes back."""
    bench = Bench()
    good = data(30, 0, 77)

    async def drive(ctx: Any) -> None:
        await bench.configure(ctx)
        for psn in range(8):
            packet, plane, qp = data(750, 0, psn)
            await bench.requests(ctx, [(packet, plane, qp)], obey=True, error=kind == "error")
            if kind == "short":
                del bench.words[-40:-1]
            elif kind == "long":
                bench.words[-1:] = [{"data": 1, "last": 0, "error": 0}] * 5 + bench.words[-1:]
            await bench.quiet(ctx, 30)
        await bench.requests(ctx, [good], obey=True)
        await bench.quiet(ctx)
        assert [depart["psn"] for depart in bench.departs] == [*range(8), 77]
        assert [(depart["read_error"], depart["dropped"]) for depart in bench.departs] == [(1, 0)] * 8 + [(0, 0)]
        bench.departs = bench.departs[-1:]
        assert bench.frames(0) == [wire.build(p) for p in bench.stamped([good])]

    simulate(bench, drive)


def test_port_down_while_frames_queue() -> None:
    """Facts 5: what is queued is dropped and counted, a cut frame ended, later descriptors depart as dropped, the other port works; up: as new."""
    bench = Bench()
    stalled = {"on": True}
    bench.tx_stalled = lambda n: stalled["on"] and n == 0
    queued = [data(200, 0, psn) for psn in range(4)]
    late = [data(50, 0, 10), (outgoing(Opcode.PROBE, 0, 1, psn=11), 0, 1), data(9, 1, 12)]
    fresh: dict[str, int] = {}

    async def drive(ctx: Any) -> None:
        dut = bench.dut
        await bench.configure(ctx)
        await bench.requests(ctx, queued, obey=True)
        await bench.quiet(ctx)
        assert not bench.beats[0]
        ctx.set(dut.up, 0b10)
        await bench.quiet(ctx)
        assert bench.lost[0] == 4 and not bench.beats[0]  # the offered beat stays, and is one of a frame that counts as lost
        await bench.requests(ctx, late)
        await bench.answers(ctx, [(outgoing(Opcode.SACK, 0, 1), 0, 1), (outgoing(Opcode.SACK, 1, 1), 1, 1)])
        await bench.quiet(ctx)
        assert bench.lost == [7, 0] and bench.drops == 7
        assert [(d["psn"], d["dropped"], d["read_error"]) for d in bench.departs] == [*((n, 0, 0) for n in range(4)), (10, 1, 0), (11, 1, 0), (12, 0, 0)]
        assert len(bench.frames(1)) == 2
        stalled["on"] = False
        await bench.quiet(ctx)
        assert bench.frames(0) == [b""] and bench.sent_frames[0] == 0  # cut, ended properly, marked bad
        ctx.set(dut.up, 0b11)
        bench.departs.clear()
        again = [data(60, 0, 20), data(61, 0, 21)]
        await bench.requests(ctx, again)
        await bench.quiet(ctx)
        assert bench.frames(0)[1:] == [wire.build(p) for p in bench.stamped(again)]
        stalled["on"] = True
        fresh["after"] = await frames_until_full(ctx, bench)

    simulate(bench, drive)
    untouched = Bench()
    untouched.tx_stalled = lambda n: True

    async def fill(ctx: Any) -> None:
        await untouched.configure(ctx)
        fresh["before"] = await frames_until_full(ctx, untouched)

    simulate(untouched, fill)
    assert fresh["after"] == fresh["before"] > 10


@pytest.mark.parametrize("seed", range(2))
def test_ports_flap(seed: int) -> None:
    """Random: ports go up and down under load. Every descriptor departs once; sent + lost = accepted; whole frames are right."""
    rng = random.Random(seed)
    bench = Bench(tx_go=coin(rng, 0.6), depart_go=coin(rng, 0.7))
    requests = [data(rng.choice((1, 8, 60, 200)), rng.randrange(2), psn) for psn in range(40)]
    answers = [(outgoing(Opcode.SACK, plane, 1, 3), plane, 1) for plane in (0, 1) * 10]
    done = {"n": 0}

    async def feed(ctx: Any) -> None:
        await bench.configure(ctx)
        await bench.requests(ctx, requests, obey=True)
        await bench.quiet(ctx, 150)
        done["n"] = 1

    async def feed_answers(ctx: Any) -> None:
        while not bench.configured:
            await ctx.tick()
        await bench.answers(ctx, answers, coin(rng, 0.05))

    async def flap(ctx: Any) -> None:
        while not bench.configured:
            await ctx.tick()
        for _ in range(30):
            for _ in range(rng.randrange(60)):
                await ctx.tick()
            ctx.set(bench.dut.up, rng.choice((0, 1, 2, 3, 3)))
        ctx.set(bench.dut.up, 3)

    simulate(bench, feed, feed_answers, flap)
    assert [d["psn"] for d in bench.departs] == [p.psn for p, _, _ in requests]
    whole = [frame for plane in (0, 1) for frame in bench.frames(plane) if frame]
    packets = [wire.parse(frame) for frame in whole]
    assert all(isinstance(packet, Packet) for packet in packets)
    assert len(whole) == sum(bench.sent_frames)
    assert len(whole) + sum(bench.lost) == len(requests) + len(answers)
    assert bench.drops == sum(bench.lost) > 0
