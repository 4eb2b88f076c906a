"""Random life of the requestor in lockstep with the golden model: every record is compared; at the end everything posted completes, once.

Failure modes covered: R-01, R-09, R-16, R-17, R-22, S-01, O-05, O-08, X-07. Replays with ``python -m verif.requestor.test_lockstep FIRST LAST+1 [CLOCKS]``.
"""

from __future__ import annotations

import collections
import random
import sys

import pytest

from hdl import layouts as fixed
from hdl.params import Params, preset
from model import spec
from model.spec import Command, Kind, PostStatus, QpState
from verif.requestor.bench import Bench, simulate
from verif.requestor.chaos import Chaos
from verif.requestor.golden import Golden

SEEDS = (1, 2, 3, 4)
CLOCKS = 2500


def live(seed: int, clocks: int = CLOCKS, params: Params | None = None) -> tuple[Bench, Golden]:
    """One random life. Odd seeds have forged feedback and resets, even seeds an honest peer, whose messages must all complete in the end."""
    rng = random.Random(f"requestor {seed}")
    p = params or preset("tiny", evs=rng.choice((1, 2, 2, 4)), active_evs=1)
    honest = seed % 2 == 0
    golden = Golden(p, seed)

    async def test(b: Bench) -> None:
        b.on_record = golden.take
        b.tick = rng.choice((0, 0xFFFFF800, 0xFFC0, 1 << 31))
        pace = rng.choice((0.3, 0.9, 1.0))
        b.ready = lambda name: rng.random() < pace
        world = Chaos(b, loss=rng.choice((0.01, 0.05, 0.1)), forged=0 if honest else 0.05, host=0.01, fatal=0 if honest else rng.choice((0, 0.03)),
                      jitter=rng.choice((20, 60, 200)))  # fmt: skip
        active = rng.randrange(1, p.evs + 1)
        glob = {"reo_wnd": rng.choice((5, 20, 94)), "probe_time": rng.choice((100, 200)), "nack_retx_time": rng.choice((0, 20)),
                "spray_in_order": rng.randrange(2), "evidence_first_only": int(rng.random() < 0.3), "cwnd_rule_below": rng.randrange(2)}  # fmt: skip
        for qp in range(p.qps):
            await world.connect(
                qp, active, glob, sq_psn=rng.choice((0, 0xFFFFF0, rng.getrandbits(24))), mtu=rng.choice((0, 0, 2, 4)), ipv4=rng.randrange(2),
                req_mpr=rng.choice((128, 128, 20)), cwnd=rng.choice((1 << 20, 30000)), path_credit=rng.choice((2, 8, 128)),
                ev_min_active=rng.choice((0, 1, 2)), timer_exp=rng.choice((3, 5, 6)), linear_cnt=rng.choice((0, 2, 3)),
                exp_cnt=25 if honest else rng.choice((2, 4, 25)), peer_max_wimm=rng.choice((1, 2, 32)), lfsr_seed=rng.randrange(1, 1 << 16),
            )  # fmt: skip
        await world.run(clocks)
        if honest:
            await calm_down(b, world)
            everything_done(b, seed)

    return simulate(test, p, seed, tick_div=rng.choice((2, 4, 8))), golden


async def calm_down(b: Bench, world: Chaos) -> None:
    """No more faults, no more posts: waits until every message is complete and nothing is in flight."""
    world.calm, world.posting = True, False
    b.up = b.room = (1 << b.params.planes) - 1
    b.ready = lambda name: True
    for plane in range(b.params.planes):
        b.cmds.append({"op": int(Command.PORT), "qp": 0, "index": plane, "data": 1})
    for qp in range(b.params.qps):
        for evi in range(b.params.total_evs):
            b.cmds.append({"op": int(Command.EV_STATE), "qp": qp, "index": evi, "data": 0})
    last: dict[int, dict[str, int]] = {}
    for _ in range(400):
        await world.run(50)
        for record in b.records[-100:]:
            last[record["qp"]] = record["ctx"]
        if not b.cmds and all(ctx["state"] != QpState.RTS or (ctx["msg_head"] == ctx["msg_tail"] and ctx["tx_pending"] == 0 and ctx["unretired"] == 0)
                              for ctx in last.values()):  # fmt: skip
            return
    raise AssertionError(f"seed {b.seed}: not at rest 20000 clocks after the last fault: {last}")


def everything_done(b: Bench, seed: int) -> None:
    """Each accepted post completed once, in order, and nothing is left in flight (invariants 16 and 18)."""
    for qp in range(b.params.qps):
        posted = [r["body"]["wr"] for r in b.kinds(Kind.POST) if r["qp"] == qp and r["body"]["status"] == PostStatus.OK]
        ids = [fixed.WORK_REQUEST.from_bits(wr & (1 << fixed.WORK_REQUEST.size) - 1)["wr_id"] for wr in posted]
        done = [c for c in b.completions if c["qp"] == qp]
        assert [c["wr_id"] for c in done] == ids, f"seed {seed} QP {qp}"
        assert all(c["status"] == 0 for c in done), f"seed {seed} QP {qp}"
        ctx = next(r["ctx"] for r in reversed(b.records) if r["qp"] == qp)
        assert (ctx["inflight"], ctx["unretired"], ctx["timer_on"], ctx["wimm_open"]) == (0, 0, 0, 0), f"seed {seed} QP {qp}: {ctx}"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_life(seed: int) -> None:
    """Lockstep over random feedback, faults and commands (MRC-REQ-052 to 099, 130 to 156)."""
    b, golden = live(seed)
    assert golden.count == len(b.records) > 100, f"seed {seed}: only {golden.count} records"
    assert len(b.kinds(Kind.SEND)) > 10 and b.kinds(Kind.RETIRE), f"seed {seed}"


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        bench, _ = live(number, int(sys.argv[3]) if len(sys.argv) > 3 else CLOCKS)
        steps = collections.Counter(r["kind"].name for r in bench.records)
        causes = collections.Counter(spec.Drop(d).name for d in bench.drops)
        print(f"seed {number}: {len(bench.records)} records in {bench.clock} clocks {dict(steps)} drops {dict(causes)}", flush=True)
