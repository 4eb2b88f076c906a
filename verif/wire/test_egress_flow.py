"""The send path under load and failure: back-pressure, room, write stamps, host memory errors, ports that go down."""

from __future__ import annotations

import random
from typing import Any

import pytest

from model import wire
from model.spec import Opcode, Syndrome
from verif.wire.agents import coin
from verif.wire.egress_bench import Bench, data, outgoing, run, simulate

ANSWERS = (Opcode.SACK, Opcode.NACK, Opcode.ACK)
@pytest.mark.parametrize("seed", range(2))
def test_random_back_pressure(seed: int) -> None:
    """X-01, X-06, X-07, X-08: random stalls on every stream, both owners at once."""
    rng = random.Random(seed)
    requests = [data(rng.choice((1, 3, 8, 17, 100)), rng.randrange(2), psn) for psn in range(25)]
    requests += [(outgoing(Opcode.PROBE, plane, 1, psn=99 + plane), plane, 1) for plane in (0, 1)]
    answers = [(outgoing(rng.choice(ANSWERS), plane, 1, rng.randrange(9)), plane, 1) for plane in [rng.randrange(2) for _ in range(25)]]
    run(requests, answers, tx_go=coin(rng, 0.5), depart_go=coin(rng, 0.3), payload_go=coin(rng, 0.6), request_go=coin(rng, 0.5), answer_go=coin(rng, 0.3))


def test_rate() -> None:
    """One word a clock: frames on one port follow each other with at most two idle clocks, and answers too."""
    requests = [data(512, 0, psn) for psn in range(6)]
    bench = run(requests, [])
    words = len(bench.beats[0])
    busy = [depart for depart in bench.departs]
    assert len(busy) == 6
    assert bench.clock - 140 < words + 6 * 3 + 60, f"{bench.clock} clocks for {words} words"


def test_departures_may_wait() -> None:
    """O-07: an owner that takes no departure until its descriptors are accepted cannot block itself; answers leave meanwhile and disturb none."""
    bench = Bench(depart_go=lambda: accepted["all"])
    accepted = {"all": False}
    items = [data(5, psn & 1, psn) for psn in range(9)]  # one more than the queue holds: its departure waits in the builder
    answers = [(outgoing(Opcode.SACK, plane, 1, 3), plane, 1) for plane in (0, 1)]

    async def drive(ctx: Any) -> None:
        await bench.configure(ctx)
        await bench.requests(ctx, items)
        await bench.quiet(ctx)
        await bench.answers(ctx, answers)
        await bench.quiet(ctx)
        assert not bench.departs
        accepted["all"] = True
        await bench.quiet(ctx)

    simulate(bench, drive)
    bench.check(items, answers)


def test_full_port_does_not_hold_up_the_other() -> None:
    """X-07, O-07: port 0 does not take anything; the owner obeys room; port 1 goes on, and everything is there at the end."""
    stalled = {"on": True}
    bench = Bench()
    bench_items = [data(1500, 0, psn) for psn in range(9)]
    other = [data(300, 1, 100 + psn) for psn in range(4)]
    original = bench.dut.tx[0]

    async def hold(ctx: Any) -> None:
        await bench.configure(ctx)
        fits = 0
        while ctx.get(bench.dut.room_req[0]) and fits < len(bench_items):
            await bench.requests(ctx, [bench_items[fits]], obey=True)
            fits += 1
            await ctx.tick()
        await bench.quiet(ctx, 250)
        assert 0 < fits < len(bench_items) and ctx.get(original.valid)
        assert ctx.get(bench.dut.room_req) == 0b10 and ctx.get(bench.dut.room_rsp) == 0b11
        await bench.requests(ctx, other)
        await bench.answers(ctx, [(outgoing(Opcode.SACK, 1, 1), 1, 1)])
        await bench.quiet(ctx)
        assert len(bench.frames(1)) == 5 and not bench.beats[0]
        stalled["on"] = False
        await bench.requests(ctx, bench_items[fits:], obey=True)
        await bench.quiet(ctx)
        assert ctx.get(bench.dut.room_req) == 0b11
        sent = [wire.build(p) for p in bench.stamped(bench_items[:fits] + other + bench_items[fits:])]
        assert bench.frames(0) == sent[:fits] + sent[fits + 4 :]
        assert [frame for frame in bench.frames(1) if frame in sent] == sent[fits : fits + 4]

    bench.tx_stalled = lambda n: stalled["on"] and n == 0
    simulate(bench, hold)


def test_acks_wait_for_payload_writes() -> None:
    """Order of memory and messages: a stamped answer leaves when the writes issued before it are done, across the wrap; SACKs pass it."""
    bench = Bench()
    acks = [(outgoing(Opcode.ACK, 0, qp, qp, syndrome=Syndrome.ACK, psn=qp), 0, qp) for qp in (0, 1)]
    nak = (outgoing(Opcode.ACK, 0, 0, 5, syndrome=Syndrome.NAK_REMOTE_OPERATION, psn=7), 0, 0)
    sack = (outgoing(Opcode.SACK, 0, 1), 0, 1)

    async def drive(ctx: Any) -> None:
        dut = bench.dut
        ctx.set(dut.wr_done, 0xFFFE)
        await bench.configure(ctx)
        for issued, ack in zip((0xFFFF, 1), acks, strict=True):
            ctx.set(dut.wr_issued, issued)
            await bench.answers(ctx, [ack], wr_stamp=1)
        ctx.set(dut.wr_issued, 9)  # later writes do not hold them up
        await bench.answers(ctx, [sack])
        await bench.quiet(ctx)
        assert bench.frames(0) == [wire.build(sack[0])]
        ctx.set(dut.wr_done, 0xFFFF)
        await bench.quiet(ctx)
        assert bench.frames(0)[1:] == [wire.build(acks[0][0])]
        ctx.set(dut.wr_done, 0)
        await bench.quiet(ctx)
        assert len(bench.frames(0)) == 2
        ctx.set(dut.wr_done, 1)
        await bench.quiet(ctx)
        assert bench.frames(0)[2:] == [wire.build(acks[1][0])]
        # A QP with a failed write: its ACKs vanish (many times, room comes back), its NAK leaves; another QP is not touched.
        ctx.set(dut.failed, 0b01)
        ctx.set(dut.wr_issued, 1)
        await bench.answers(ctx, [acks[0]] * 40, wr_stamp=1)
        await bench.answers(ctx, [nak, acks[1]], wr_stamp=1)
        await bench.quiet(ctx, 150)
        assert bench.frames(0)[3:] == [wire.build(nak[0]), wire.build(acks[1][0])]
        assert ctx.get(dut.room_rsp) == 0b11 and bench.drops == 0

    simulate(bench, drive)
