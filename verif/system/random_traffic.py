"""Random traffic: everything that a seed can choose, all faults on, two QPs or more in both directions.

The seed draws the global and connection parameters, the rates of every fault, the pace of every bus and stream, the messages, and events on
the way: links that fail and return, EVs that the controller denies and allows. Nothing is directed; the lockstep and the checks of the end judge.

Covers MRC-REQ-070..099, 130..160, 200..240 and 260..276 in combination, over the wrap of the PSN in every other seed.
"""

from __future__ import annotations

import random
from typing import Any

from model.spec import EXP_FOREVER, PSN_MASK, Command
from verif.system.env import A, B, System
from verif.system.scenarios import scenario

RECORDS = 5000
"""Commit records that every seed must bring: with 24 seeds, more than 100 000."""
_PPM = {"drop": 30_000, "corrupt": 15_000, "duplicate": 30_000, "reorder": 100_000, "mark": 50_000, "trim": 20_000, "trim_lasthop": 10_000}
_GAPS = ("aw_gap", "w_gap", "b_gap", "ar_gap", "r_gap", "tx_stall", "rx_gap", "axil_gap")


def _globals(rng: random.Random) -> dict[str, int]:
    return {
        "reo_wnd": rng.choice((8, 64, 200)), "probe_time": rng.choice((100, 300, 1000)), "nack_retx_time": rng.choice((0, 50, 500)),
        "sack_threshold": rng.choice((1024, 4096, 16384)), "sack_flush_time": rng.choice((0, 10, 60)), "oor_silent": rng.getrandbits(1),
        "ev_swap": rng.getrandbits(1), "spray_in_order": rng.getrandbits(1), "evidence_first_only": rng.getrandbits(1),
        "cwnd_rule_below": rng.getrandbits(1),
    }  # fmt: skip


def _connection(rng: random.Random, s: System, mtu: int) -> dict[str, int]:
    size = 256 << mtu
    return {
        "mtu": mtu, "ipv4": rng.getrandbits(1), "timer_exp": rng.choice((4, 5, 6)), "linear_cnt": rng.randrange(1, 8), "exp_cnt": EXP_FOREVER,
        "cwnd": rng.choice((2 * size + 400, 20 * size, 1 << 20)), "path_credit": rng.choice((2, 5, 40)), "trim_nack": rng.getrandbits(1),
        "peer_max_wimm": rng.randrange(1, s.p.max_wimm + 1), "ev_min_active": rng.randrange(1, s.p.planes + 1),
        "active": rng.randrange(1, s.p.evs + 1),
    }  # fmt: skip


def _faults(rng: random.Random, s: System) -> None:
    for name, most in _PPM.items():
        for nic in (A, B):
            for plane in range(s.p.planes):
                s.native.set(name, rng.randrange(most), nic, plane)
    s.native.set("jitter", rng.choice((0, 100, 800)))
    s.native.set("trim_cut_lengths", rng.getrandbits(1))
    for name in _GAPS:
        s.native.set(name, rng.choice((0, 0, 50_000, 400_000)))
    s.native.set("tx_lazy", rng.getrandbits(1))
    s.native.set("latency_max", rng.choice((4, 60, 400)))
    s.native.set("outstanding", rng.choice((1, 2, 16)))


def _calm(s: System) -> None:
    for name in _PPM:
        s.native.set(name, 0)


async def _disturb(s: System, rng: random.Random, down: list[tuple[int, int]], denied: list[tuple[int, int, int]]) -> None:
    """One event of the kind that an operator or a broken cable makes; the next call ends it."""
    if down:
        s.native.set("up", 1, *down.pop())
    elif denied:
        nic, qp, evi = denied.pop()
        s.queue(nic, Command.EV_STATE, qp, evi, 0)
    elif rng.random() < 0.5:
        down.append((rng.choice((A, B)), rng.randrange(s.p.planes)))
        s.native.set("up", 0, *down[0])
    else:
        denied.append((rng.choice((A, B)), rng.randrange(2), rng.randrange(s.p.total_evs)))
        s.queue(denied[0][0], Command.EV_STATE, denied[0][1], denied[0][2], 1)


def _message(s: System, rng: random.Random, nic: int, qp: int, mtu: int, most: int) -> int:
    """Posts a write or WriteIMM; returns its packets."""
    size = 256 << mtu
    length = rng.choice((rng.randrange(1, 65), rng.randrange(1, size + 1), rng.randrange(1, min(most, 12) * size)))
    imm: Any = rng.getrandbits(32) if rng.random() < 0.4 else None
    if imm is not None:
        s.post_recv(1 - nic, qp)
    s.write(nic, length, qp, imm=imm)
    return -(-length // size)


@scenario(presets=("tiny", "board"), seeds=24, timeout=600.0)
async def random_traffic(s: System) -> None:
    """A seed's own network, connections and messages."""
    rng = s.rng
    glob = _globals(rng)
    mtus = [rng.randrange(0, 5) for _ in range(2)]
    near_wrap = rng.getrandbits(1)
    for qp, mtu in enumerate(mtus):
        psns = {name: PSN_MASK - rng.randrange(200) for name in ("psn_a", "psn_b")} if near_wrap else {}
        await s.connect(qp, receives=0, glob=glob, **_connection(rng, s, mtu), **psns)
    _faults(rng, s)
    s.wanted_records = RECORDS
    down: list[tuple[int, int]] = []
    denied: list[tuple[int, int, int]] = []
    packets = 0
    while packets < 1000:
        for _ in range(rng.randrange(1, 5)):
            nic, qp = rng.choice((A, B)), rng.randrange(2)
            waiting = sum(len(queue) for queue in (s.sends.get((nic, qp), ()), s.receives.get((1 - nic, qp), ())))
            if waiting < min(s.p.msg_slots, s.p.rq_entries) // 2:
                packets += _message(s, rng, nic, qp, mtus[qp], 1000)
        await s.step(rng.randrange(50, 3000))
        if rng.random() < 0.03:
            await _disturb(s, rng, down, denied)
    while down or denied:
        await _disturb(s, rng, down, denied)
    await s.done(3_000_000)
    _calm(s)
    await s.quiet(12_000, 2_000_000)  # longer than T(1): every EV that was given up has been probed back
