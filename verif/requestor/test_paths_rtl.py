"""Spray arbiter and EV changes alone, against the golden path functions on random rows. Covers MRC-REQ-132 to 151."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from amaranth.sim import Simulator

from hdl.layouts import Layouts
from hdl.params import Params, preset
from hdl.requestor.evchange import EvChange, EvOp
from hdl.requestor.spray import Spray
from model import path_events, paths
from model.path_events import EvEntry, Path, PlaneRow
from model.spec import MFlag
from verif.requestor.bench import decode

SHAPES = {
    "tiny": preset("tiny"), "board": preset("board"), "one": preset("tiny", planes=1, evs=1, active_evs=1),
    "wide": preset("tiny", planes=4, evs=16), "lone evs": preset("tiny", planes=4, evs=1, active_evs=1),
}  # fmt: skip


def random_path(rng: random.Random, p: Params) -> Path:
    """Any row that the rules can leave: one health per EV, SKIP only on ACTIVE ones."""
    path = Path(p.evs, rng.randrange(p.planes), rng.randrange(1, 1 << 16))
    favour = rng.choice(("good", "skip", "bad", "mixed", "mixed"))
    for _ in range(p.planes):
        row = PlaneRow(ptr=rng.randrange(p.evs + 1), r=rng.randrange(p.evs))
        for e in range(p.evs):
            bit = 1 << e
            health = favour if favour != "mixed" and rng.random() < 0.8 else rng.choice(("good", "skip", "bad", "denied"))
            active = rng.random() < 0.7
            if health == "skip" and not active:
                health = "good"
            if health != "denied":
                setattr(row, health, getattr(row, health) | bit)
            row.active |= bit * active
            row.full |= bit * (rng.random() < 0.4)
        path.planes.append(row)
    return path


def fields(path: Path) -> dict[str, Any]:
    """The row as ``layouts.path`` fields."""
    rows = [{name: getattr(row, name) for name in ("active", "good", "skip", "bad", "full", "ptr", "r")} for row in path.planes]
    return {"plane_ptr": path.plane_ptr, "lfsr": path.lfsr, "planes": rows}


def drive(dut: Any, cases: list[dict[str, Any]], outputs: list[str], check: Callable[[int, dict[str, Any]], None]) -> None:
    """Runs every case through ``dut`` (start ... done) and hands its outputs to ``check``."""
    sim = Simulator(dut)
    sim.add_clock(1e-8)

    async def process(ctx: Any) -> None:
        for number, case in enumerate(cases):
            for name, value in case.items():
                ctx.set(getattr(dut, name), value)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            for _ in range(10):
                if ctx.get(dut.done):
                    break
                await ctx.tick()
            else:
                raise AssertionError(f"case {number}: not done after 10 clocks")
            values = {name: ctx.get(getattr(dut, name)) for name in outputs}
            values["next_path"] = decode(Layouts(dut.params).path, ctx.get(dut.next_path.as_value()))
            check(number, values)
            await ctx.tick()

    sim.add_testbench(process)
    sim.run()


@pytest.mark.parametrize("name", SHAPES)
def test_spray_follows_the_selection_rule(name: str) -> None:
    """Plane, EV, fallback and the row after the packet equal the rule's, for new data, probes and masked retransmissions."""
    p, seed = SHAPES[name], 11
    rng = random.Random(f"{seed} {name}")
    cases, wanted = [], []
    seen = {"wait": 0, "fallback": 0, "restored": 0, "redrawn": 0}
    for _ in range(220):
        path, up, room = random_path(rng, p), rng.randrange(1 << p.planes), rng.randrange(1 << p.planes)
        if rng.random() < 0.6:
            up = room = (1 << p.planes) - 1
        need_credit, masked, in_order, evi = rng.randrange(2), rng.randrange(2), rng.randrange(2), rng.randrange(p.total_evs)
        cases.append({"path": fields(path), "up": up, "room": room, "need_credit": need_credit, "masked": masked, "mask_evi": evi, "in_order": in_order})
        mask = paths.usable_mask(path, up, evi) if masked else None
        choice = paths.select(path, up, room, bool(need_credit), mask, bool(in_order))
        if choice is not None:
            before = path.lfsr
            paths.commit(path, choice)
            seen["fallback"] += choice.fallback
            seen["restored"] += choice.restored >= 0
            seen["redrawn"] += path.lfsr != before
        else:
            seen["wait"] += 1
        wanted.append((choice, fields(path)))
    assert min(seen.values()) >= (5 if name != "one" else 0), f"seed {seed}: the cases are one-sided: {seen}"

    def check(number: int, got: dict[str, Any]) -> None:
        choice, after = wanted[number]
        assert got["found"] == (choice is not None), f"seed {seed} case {number}: {cases[number]}"
        if choice is not None:
            assert (got["plane"], got["evi"], got["fallback"]) == (choice.plane, choice.evi, choice.fallback), f"seed {seed} case {number}: {cases[number]}"
            assert got["next_path"] == after, f"seed {seed} case {number}: {cases[number]}"

    drive(Spray(p), cases, ["found", "plane", "evi", "fallback"], check)


def _change(path: Path, op: EvOp, evi: int, least: int) -> bool:
    """The golden change; whether the EV became ASSUMED_BAD."""
    if op == EvOp.SKIP:
        path_events.to_skip(path, evi)
    elif op == EvOp.BAD:
        return path_events.to_bad(path, evi, least)
    elif op == EvOp.DENY:
        path_events.deny(path, evi)
    elif op == EvOp.ALLOW:
        path_events.allow(path, evi)
    else:
        entry = EvEntry(probe_ok=2)
        path_events.probe_answer(path, entry, evi, MFlag.SKIP_ONCE if op == EvOp.RECOVER_SKIP else MFlag.NONE)
    return False


@pytest.mark.parametrize("name", SHAPES)
def test_ev_changes_follow_the_rules(name: str) -> None:
    """Health, membership swaps and the ev_min_active guard equal the rules' for every operation."""
    p, seed = SHAPES[name], 12
    rng = random.Random(f"{seed} {name}")
    cases, wanted, swaps = [], [], 0
    for _ in range(250):
        path, op, evi = random_path(rng, p), rng.choice(list(EvOp)), rng.randrange(p.total_evs)
        least = rng.choice((0, 1, path_events.count_serving(path), path_events.count_serving(path) - 1, 255)) % 256
        cases.append({"path": fields(path), "op": op, "evi": evi, "ev_min_active": least})
        members = [row.active for row in path.planes]
        became = _change(path, op, evi, least)
        swaps += members != [row.active for row in path.planes]
        wanted.append((became, fields(path)))
    assert swaps >= 10 or p.evs == 1, f"seed {seed}: only {swaps} swaps"

    def check(number: int, got: dict[str, Any]) -> None:
        became, after = wanted[number]
        assert got["next_path"] == after, f"seed {seed} case {number}: {cases[number]}"
        assert got["became_bad"] == became, f"seed {seed} case {number}: {cases[number]}"

    drive(EvChange(p), cases, ["became_bad"], check)
