"""Directed scenarios: EVs and planes that die and come back, EVs that are skipped, ports that go down."""

from __future__ import annotations

from collections.abc import Iterable

from model.spec import Command, Health, Kind, MFlag, Opcode, PostStatus
from verif.system.env import A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import FEEDBACK, REQ, Record, Watch, need


def _used(s: System, w: Watch, evi: int, since: int = 0) -> int:
    """Data frames that A has sent on an EV."""
    return sum(f.packet.ev == s.ev_value(A, 0, evi) and f.clock >= since for f in w.data(A))


def _bit(row: dict[str, int], name: str, ev: int) -> int:
    return row[name] >> ev & 1


def _ever(w: Watch, plane: int, name: str, bits: int) -> Iterable[Record]:
    """Requestor's records of A's QP 0 after which all of ``bits`` are set in a plane's row."""
    return (r for r in w.all if (r.nic, r.owner, r.qp) == (A, REQ, 0) and r.kind != Kind.PORT and w.paths(r)["planes"][plane][name] & bits == bits)


@scenario(presets=("tiny",))
async def ev_dead(s: System) -> None:
    """One of four EVs is a black hole: it goes to ASSUMED_BAD and carries nothing more; probes bring it back, it is used again.

    MRC-REQ-147, 148, 150, 154, 118 and failure reaction (facts 8).
    """
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=6, glob={"reo_wnd": 30, "sack_threshold": 2048})
    hole = s.native.rule("blackhole", nic=A, ev=s.ev_value(A, 0, 1), count=None)
    s.write(A, 256 * 100)
    s.write(A, 256 * 20, imm=3)
    await s.done()
    bad = next(iter(_ever(w, 0, "bad", 2)), None)
    need(s.native.rule_hits(hole) > 0 and bad is not None, "EV 1 of plane 0 ASSUMED_BAD", bad)
    need(bad is not None and all(r.body["evi"] != 1 for r in w.records(A, Kind.SEND) if r.clock > bad.clock and r.clock < s.clock), "it carries no more data")
    need(all(r.body["evi"] == 1 for r in w.records(A, Kind.JUDGE, proved=1)), "no other EV blamed")
    await w.until(lambda: len(w.records(A, Kind.PROBE, slot=1)) >= 2, "probes of the dead EV")
    need(_bit(w.row(A, 0), "bad", 1) == 1, "still ASSUMED_BAD while it is dead")
    s.native.rule_clear(hole)
    await w.recovered()
    back = s.clock
    answers = [r for r in w.records(A, Kind.SACK, pr=1) if r.body["evi"] == 1 and r.body["ev_found"]]
    need(len(answers) == 3, "three probe answers", len(answers))
    s.write(A, 256 * 20)
    await s.done()
    need(_used(s, w, 1, back) >= 3, "EV 1 in use again", _used(s, w, 1, back))


@scenario(presets=("tiny",))
async def ev_replaced(s: System) -> None:
    """An ACTIVE EV dies while a BACKUP of its plane is GOOD: they swap; the one that recovers stays BACKUP. MRC-REQ-148, 151 and invariant 4."""
    w = Watch(s)
    await s.connect(mtu=0, active=1, timer_exp=6, glob={"reo_wnd": 30, "sack_threshold": 2048})
    hole = s.native.rule("blackhole", nic=A, ev=s.ev_value(A, 0, 0), count=None)
    s.write(A, 256 * 80)
    await s.done()
    row = w.row(A, 0)
    need(row["active"] == 2 and row["bad"] == 1 and row["good"] & 2, "EV 1 ACTIVE in place of EV 0", row)
    need(_used(s, w, 1) >= 20, "the backup carries the plane's packets", _used(s, w, 1))
    need(all(w.paths(r)["planes"][0]["active"].bit_count() == 1 for r in w.records(A, Kind.SEND)), "one ACTIVE EV per plane all the time")
    s.native.rule_clear(hole)
    await w.recovered()
    row = w.row(A, 0)
    need(row["active"] == 2 and row["good"] == 3, "EV 0 GOOD, BACKUP", row)


@scenario(presets=("tiny",))
async def plane_dead(s: System) -> None:
    """The link of one plane goes down in the middle of a transfer and comes back: all goes on over the other, then over both again.

    MRC-REQ-155, 230 and facts 8, one of 8 ports lost.
    """
    w = Watch(s)
    await s.connect(mtu=1, active=2, timer_exp=6, exp_cnt=25)
    s.write(A, 512 * 100)
    s.write(B, 512 * 30)
    await w.until(lambda: len(w.data(A)) >= 30, "thirty packets")
    for nic in (A, B):
        s.native.set("up", 0, nic, 1)
    await w.until(lambda: any(r.body["up"] == 1 for r in w.records(A, Kind.PORT, owner=REQ)), "A's plane 1 down")
    down = s.clock
    await s.done()
    one = [r for r in w.records(A, Kind.SEND) if r.clock > down]
    need(len(one) >= 30 and all(r.body["plane"] == 0 for r in one), "everything on plane 0", len(one))
    need(w.row(A, 1)["active"] == 3, "the EVs of plane 1 keep their membership", w.row(A, 1))
    for nic in (A, B):
        s.native.set("up", 1, nic, 1)
    await w.until(lambda: w.records(A, Kind.PORT, owner=REQ)[-1].body["up"] == 3, "A's plane 1 up")
    await w.recovered()  # those that lost packets in the failure are probed first
    up = s.clock
    s.write(A, 512 * 20)
    await s.done()
    planes = [r.body["plane"] for r in w.records(A, Kind.SEND) if r.clock > up]
    need(planes.count(1) >= 5, "plane 1 in use again", planes)


@scenario(presets=("tiny",))
async def all_paths_dead(s: System) -> None:
    """Every path dead for a while: linear, then exponential expiries, sends on ASSUMED_BAD EVs as the last resort; all recovers.

    MRC-REQ-090, 141, 150 and N-03, R-22.
    """
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=4, linear_cnt=2, exp_cnt=25, glob={"reo_wnd": 30})
    s.write(A, 256 * 8)
    await s.done()
    hole = s.native.rule("blackhole", nic=A, count=None)
    s.write(A, 256 * 20, imm=1)
    await w.until(lambda: len(w.records(A, Kind.TIMEOUT)) >= 4, "four expiries", 60_000)
    s.native.rule_clear(hole)
    await s.done()
    ticks = [r.tick for r in w.records(A, Kind.TIMEOUT)][:4]
    gaps = [b - a for a, b in zip(ticks, ticks[1:])]
    need(all(wanted <= gap <= wanted + 16 for gap, wanted in zip(gaps, (128, 256, 512))), "T, then 2 T, 4 T", gaps)
    worst = [r for r in w.records(A, Kind.SEND, fallback=1)]
    need(len(worst) >= 1, "fallback when no EV is GOOD")
    await w.recovered()
    need(all(row["bad"] == 0 for row in w.paths(w.now(A))["planes"]), "every EV back")


@scenario(presets=("tiny",))
async def no_port_up(s: System) -> None:
    """Every link down, then up: packets of that time are resent, answers without a port are counted. MRC-REQ-155, 230, 276."""
    w = Watch(s)
    await s.connect(mtu=1, active=2, timer_exp=5, exp_cnt=25)
    s.write(A, 512 * 60)
    await w.until(lambda: len(w.data(A)) >= 20, "twenty packets")
    for nic in (A, B):
        s.native.set("up", 0, nic)
    await s.step(6000)
    need(any(r.body["up"] == 0 for r in w.records(A, Kind.PORT, owner=REQ)), "no port up")
    silent = len(w.sent)
    await s.step(6000)
    need(len(w.sent) == silent, "nothing leaves")
    for nic in (A, B):
        s.native.set("up", 1, nic)
    await s.done()
    need(len(w.data(A, rtx=1)) >= 1, "lost packets resent")
    await w.recovered()


@scenario(presets=("tiny",))
async def port_down_queued(s: System) -> None:
    """The host takes a port down while frames of it wait in a slow link, and up again: those are lost and counted, all is delivered.

    MRC-REQ-155, 261 and F-05.
    """
    w = Watch(s)
    await s.connect(mtu=4, active=2, timer_exp=6, exp_cnt=25)
    s.native.set("tx_period", 6)
    s.write(A, 4096 * 12, imm=2)
    await w.until(lambda: len(w.records(A, Kind.SEND)) >= 4, "four packets on their way")
    need(await s.command(A, Command.PORT, 0, 0, 0) == PostStatus.OK, "port 0 down")
    down = s.clock
    await s.step(3000)
    s.native.set("tx_period", 1)
    await s.step(2000)
    need(all(r.body["plane"] == 1 for r in w.records(A, Kind.SEND) if r.clock > down), "plane 1 alone")
    need(w.records(A, Kind.PORT, owner=REQ)[-1].body["up"] == 2, "port 0 down at the requestor")
    need(await s.command(A, Command.PORT, 0, 0, 1) == PostStatus.OK, "port 0 up")
    await s.done()
    await w.recovered()  # EVs that were blamed for the lost frames come back by probes
    s.write(A, 4096 * 8)
    await s.done()
    need(any(r.body["plane"] == 0 for r in w.records(A, Kind.SEND) if r.clock > down), "plane 0 in use again")
    await w.recovered()


@scenario(presets=("tiny",))
async def plane_skipped(s: System) -> None:
    """ECN marks take both EVs of plane 0 to SKIP; rotation brings them back, one per packet. MRC-REQ-139, 140, 146 and invariants 1, 3."""
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=12)
    marks = s.native.rule("mark", nic=A, plane=0, opcode=(0xC6, 0xCB), count=2)
    s.write(A, 256 * 4)
    await s.done()
    await w.rest()
    marked = w.records(A, Kind.SACK, mflag=int(MFlag.SKIP_ONCE))
    need(s.native.rule_hits(marks) == 2 and len(marked) == 2, "two marks told", marked)
    row = w.row(A, 0)
    need(row["skip"] == 3 and row["good"] == 0, "both EVs of plane 0 in SKIP", row)
    before = len(w.records(A, Kind.SEND))
    s.write(A, 256 * 8)
    await s.done()
    sends = w.records(A, Kind.SEND)[before:]
    skips = [3] + [w.paths(r)["planes"][0]["skip"] for r in sends]
    need(sends[0].body["plane"] == 1 and not any(r.body["fallback"] for r in sends), "plane 1 carries the first packet, no fallback")
    need(all((a & ~b).bit_count() <= 1 for a, b in zip(skips, skips[1:])) and skips[-1] == 0, "one EV restored per packet, all in the end", skips)
    need(any(r.body["plane"] == 0 for r in sends), "plane 0 in use again")
    need(not w.data(A, rtx=1), "no retransmission")


@scenario(presets=("tiny",))
async def all_skipped(s: System) -> None:
    """Every EV of the QP in SKIP: the next packet takes the first of them, which becomes GOOD. MRC-REQ-141."""
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=12)
    marks = s.native.rule("mark", nic=A, opcode=(0xC6, 0xCB), count=4)
    s.write(A, 256 * 4)
    await s.done()
    await w.rest()
    need(s.native.rule_hits(marks) == 4 and all(w.row(A, plane)["skip"] == 3 for plane in (0, 1)), "four EVs in SKIP")
    s.write(A, 256 * 6)
    await s.done()
    fifth = w.records(A, Kind.SEND)[4]
    need(fifth.body["fallback"] == 1, "the fifth packet by fallback", fifth.body)
    plane, ev = divmod(fifth.body["evi"], s.p.evs)
    need(_bit(w.paths(fifth)["planes"][plane], "good", ev) == 1, "its EV is GOOD again")


@scenario(presets=("tiny",))
async def ev_denied(s: System) -> None:
    """The controller denies an EV in the middle of a transfer and allows it again; nothing else may. MRC-REQ-131, 149 and invariant 2."""
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=10)
    s.write(A, 256 * 60)
    await w.until(lambda: len(w.data(A)) >= 10, "ten packets")
    need(await s.command(A, Command.EV_STATE, 0, 2, 1) == PostStatus.OK, "EV 2 denied")
    denied = w.records(A, Kind.CONTROL, op=int(Command.EV_STATE))[-1].clock
    await s.done()
    s.write(A, 256 * 20)
    await s.done()
    row = w.row(A, 1)
    need(not (row["good"] | row["skip"] | row["bad"]) & 1, f"EV 0 of plane 1 {Health.DENIED.name}", row)
    need(all(r.body["evi"] != 2 for r in w.records(A, Kind.SEND) if r.clock > denied), "it carries nothing")
    need(await s.command(A, Command.EV_STATE, 0, 2, 0) == PostStatus.OK, "EV 2 allowed")
    allowed = s.clock
    s.write(A, 256 * 20)
    await s.done()
    need(_used(s, w, 2, allowed) >= 3, "EV 2 in use again")


@scenario(presets=("board",))
async def ev_dead_of_many(s: System) -> None:
    """Board: 2 planes x 6 of 8 EVs; two EVs of plane 1 die, backups of that plane replace them. MRC-REQ-148, 151 and invariants 4, 5."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=6, glob={"reo_wnd": 30, "sack_threshold": 2048})
    dead = (s.p.evs + 1, s.p.evs + 4)
    holes = [s.native.rule("blackhole", nic=A, ev=s.ev_value(A, 0, evi), count=None) for evi in dead]
    for _ in range(3):
        s.write(A, 256 * 100)
    await s.done()
    row = w.row(A, 1)
    need(row["bad"] == 0b010010 and row["active"] == 0b11101101, "EVs 1 and 4 replaced by the backups 6 and 7", row)
    need(all(_used(s, w, s.p.evs + ev) >= 5 for ev in (6, 7)), "both backups in use")
    need(w.row(A, 0)["bad"] == 0, "plane 0 as it was")
    for hole in holes:
        s.native.rule_clear(hole)
    await w.recovered()
    need(w.row(A, 1)["good"] == 0xFF, "all good again", w.row(A, 1))


@scenario(presets=("tiny",))
async def answers_turn(s: System) -> None:
    """The reverse path of one EV is a black hole: duplicates turn the answers to the plane's next EV. MRC-REQ-231, 232."""
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=4, exp_cnt=25)
    holes = [s.native.rule("blackhole", nic=B, ev=s.ev_value(B, 0, plane * s.p.evs), opcode=FEEDBACK, count=None) for plane in (0, 1)]
    for n in range(4):
        s.write(A, 100, imm=n)
        await s.done()
    need(sum(s.native.rule_hits(hole) for hole in holes) >= 1, "answers lost")
    turned = [r for r in w.records(B, Kind.EMIT_SACK) + w.records(B, Kind.EMIT_ACK) if r.body["ev_in_plane"] == 1]
    need(len(turned) >= 2 and (await s.counters(B))["drop_duplicate"] >= 1, "answers on the other EV after duplicates", turned)
    need(len(w.packets(A, Opcode.PROBE)) + len(w.data(A, rtx=1)) >= 1, "retries")
    for hole in holes:
        s.native.rule_clear(hole)
    await w.recovered()
