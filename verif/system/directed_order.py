"""Directed scenarios: packets, SACKs and acknowledgements that come late, twice, in another order, or never."""

from __future__ import annotations

from model.spec import Kind, NackReason, Opcode
from verif.system.env import A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import FEEDBACK, REQ, RSP, Watch, diff, nack, need

ACK, SACK = int(Opcode.ACK), int(Opcode.SACK)


def _no_resend(w: Watch, nic: int = A) -> None:
    need(not w.data(nic, rtx=1) and not w.records(nic, Kind.JUDGE) and not w.records(nic, Kind.TIMEOUT), "no loss judged, no retransmission")


@scenario(presets=("tiny",))
async def wimm_last_first(s: System) -> None:
    """A WriteIMM of 8 packets whose last packet arrives first: its completion comes once, after all 8 are placed.

    MRC-REQ-250, 251 and O-01, O-02, O-03.
    """
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, glob={"reo_wnd": 1000})
    early = s.native.rule("delay", nic=A, opcode=(int(Opcode.WRITE_FIRST), int(Opcode.WRITE_MIDDLE)), count=7, argument=2000)
    s.write(A, 8 * 256, imm=0x8000_0001)
    await s.done()
    arrived = w.records(B, Kind.RECEIVE)
    need(s.native.rule_hits(early) == 7 and arrived[0].body["rx"]["opcode"] == Opcode.WRITE_LAST_IMM, "the last packet first")
    done = w.records(B, Kind.RECV_COMPLETE)
    need(len(done) == 1 and done[0].body["imm"] == 0x8000_0001 and done[0].body["length"] == 2048, "one completion with the immediate")
    writes = w.records(B, Kind.RECEIVE, write=1)
    need(len(writes) == 8 and done[0].clock > max(r.clock for r in writes), "it comes after all eight packets")
    _no_resend(w)


@scenario(presets=("tiny",))
async def wimms_interleaved(s: System) -> None:
    """Two WriteIMMs of a QP in flight together; all of the second arrives before the end of the first: they complete in the order posted.

    MRC-REQ-250, 251, 277 and O-01, O-02, O-03.
    """
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, glob={"reo_wnd": 1000})
    s.native.rule("delay", nic=A, opcode=int(Opcode.WRITE_MIDDLE), count=3, argument=1200)
    late = s.native.rule("delay", nic=A, opcode=int(Opcode.WRITE_LAST_IMM), count=1, argument=2500)
    s.write(A, 6 * 256, imm=0x11)
    s.write(A, 5 * 256 + 1, imm=0x22)
    await s.done()
    order = [r.body["rx"]["ext"]["msn"] for r in w.records(B, Kind.RECEIVE, write=1)]
    need(s.native.rule_hits(late) == 1 and order[-1] == 0 and order.index(1) < len(order) - 1 - order[::-1].index(0), "packets of both in flight", order)
    need(order.count(1) == 6 and order[-1] == 0, "the second was whole before the first", order)
    done = w.records(B, Kind.RECV_COMPLETE)
    need([r.body["imm"] for r in done] == [0x11, 0x22], "completions in the order posted", done)
    need(all(r.clock > w.records(B, Kind.RECEIVE, write=1)[-1].clock for r in done), "both after the last packet of the first")
    _no_resend(w)


@scenario(presets=("tiny",))
async def duplicate_after_lost_ack(s: System) -> None:
    """SACK and ACK of a message lost: the timer resends, the duplicate is not written again, SACK and ACK are repeated.

    MRC-REQ-252, 087, 109 and R-09, R-10, R-11.
    """
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=4)
    rules = [s.native.rule("drop", nic=B, opcode=opcode) for opcode in (SACK, ACK)]
    s.write(A, 200, imm=9)
    await s.done()
    need([s.native.rule_hits(rule) for rule in rules] == [1, 1], "both answers lost")
    need(len(w.records(A, Kind.TIMEOUT, head_lost=1)) == 1 and len(w.data(A, rtx=1)) == 1, "one expiry, one retransmission")
    need(len(w.records(B, Kind.RECEIVE, write=1)) == 1 and len(w.records(B, Kind.RECV_COMPLETE)) == 1, "written and completed once")
    need((await s.counters(B))["drop_duplicate"] == 1, "one duplicate counted")
    need(len(w.packets(B, Opcode.ACK)) >= 2 and len(w.packets(B, Opcode.SACK, pr=0)) == 2, "ACK and SACK repeated")
    await w.recovered()


@scenario(presets=("tiny",))
async def sacks_lost(s: System) -> None:
    """Three SACKs of a transfer lost: later ones say it all, nothing is resent. MRC-REQ-226."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, glob={"sack_threshold": 2048})
    lost = s.native.rule("drop", nic=B, opcode=SACK, skip=2, count=3)
    s.write(A, 60 * 256)
    await s.done()
    need(s.native.rule_hits(lost) == 3 and len(w.records(A, Kind.SACK)) >= 3, "three SACKs lost, others not")
    _no_resend(w)


@scenario(presets=("tiny",))
async def last_sack_lost(s: System) -> None:
    """The only SACK of a message lost: the transport ACK acknowledges all; no probe, no retransmission, nothing left in flight. MRC-REQ-087, 068."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, glob={"sack_flush_time": 0})
    lost = s.native.rule("drop", nic=B, opcode=SACK)
    s.write(A, 700)
    await s.done()
    await w.rest(6000)
    need(s.native.rule_hits(lost) >= 1 and not w.packets(A, Opcode.PROBE), "a lost SACK and no probe")
    context = w.context(w.now(A))
    need(context["inflight"] == 0 and context["unretired"] == 0, "nothing in flight", context)
    _no_resend(w)


async def _probe_repairs(s: System, opcodes: tuple[int, ...]) -> Watch:
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12)
    rules = [s.native.rule("drop", nic=B, opcode=opcode) for opcode in opcodes]
    s.write(A, 200)
    await s.done()
    need(all(s.native.rule_hits(rule) == 1 for rule in rules), "each answer lost once")
    probes, answers = w.records(A, Kind.PROBE, slot=0), w.records(A, Kind.SACK, pr=1)
    need(len(probes) == 1 and len(answers) == 1 and answers[0].body["ev_found"], "one probe, one answer that names its EV", (probes, answers))
    first = w.records(A, Kind.SEND)[0].tick
    need(282 <= probes[0].tick - first <= 600, "the probe comes after probe_time without feedback", probes[0].tick - first)
    need(len(w.packets(B, Opcode.ACK)) == 2, "the ACK again")
    _no_resend(w)
    return w


@scenario(presets=("tiny",))
async def last_ack_lost(s: System) -> None:
    """The last transport ACK lost, its SACK not: the probe timer asks, ACK and SACK come again. MRC-REQ-095, MRC-REQ-204."""
    w = await _probe_repairs(s, (ACK,))
    need(not w.data(A, rtx=1), "no retransmission")


@scenario(presets=("tiny",))
async def tail_lost(s: System) -> None:
    """The last SACK and the last ACK lost: the probe timer repairs both before the retransmission timer. MRC-REQ-095, MRC-REQ-204."""
    w = await _probe_repairs(s, (SACK, ACK))
    need(len(w.records(A, Kind.RETIRE, was_lost=0)) == 1, "one retirement")


@scenario(presets=("tiny",))
async def sacks_overtake(s: System) -> None:
    """SACKs that overtake each other: an old one moves nothing back and judges nothing. MRC-REQ-081, 084."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, active=2, glob={"sack_threshold": 2048})
    held = s.native.rule("delay", nic=B, opcode=SACK, count=3, argument=900)
    s.write(A, 80 * 256)
    await s.done()
    cacks = [r.body["rx"]["ext"]["cack_psn"] for r in w.records(A, Kind.SACK)]
    back = [(a, b) for a, b in zip(cacks, cacks[1:]) if diff(b, a) < 0]
    need(s.native.rule_hits(held) == 3 and len(back) >= 1, "a SACK overtaken by a newer one", cacks)
    unacks = [w.context(r)["unack_psn"] for r in w.all if r.nic == A and r.owner == REQ and r.kind in (Kind.SACK, Kind.ACK)]
    need(all(diff(b, a) >= 0 for a, b in zip(unacks, unacks[1:])), "unack_psn never moves back")
    need(all(r.body["drop"] == 0xFF for r in w.records(A, Kind.SACK)), "the old SACKs are valid")
    _no_resend(w)


@scenario(presets=("tiny",))
async def nack_of_acknowledged(s: System) -> None:
    """A NACK for a PSN that is acknowledged, and one with a foreign timestamp: ignored and counted, nothing resent. MRC-REQ-085."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12)
    s.write(A, 600)
    await s.done()
    await w.rest()
    for frame in w.data(A)[-2:]:
        nack(s, A, frame, NackReason.NO_RESOURCE)
    await w.rest()
    need([r.body["drop"] for r in w.records(A, Kind.NACK)] == [25, 25], "two NACKs ignored", w.records(A, Kind.NACK))
    withheld = s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None)
    s.write(A, 100)
    await w.until(lambda: len(w.data(A)) == 4, "the next packet")
    frame = w.data(A)[-1]
    nack(s, A, frame, NackReason.TRIMMED, echo_timestamp=frame.packet.tx_timestamp ^ 1)
    nack(s, A, frame, NackReason.TRIMMED, entropy=frame.packet.ev ^ 1)
    nack(s, A, frame, 0x7F)
    await s.step(1000)
    s.native.rule_clear(withheld)
    await s.done()
    need((await s.counters(A))["drop_nack_ignored"] == 5, "five NACKs ignored")
    _no_resend(w)


@scenario(presets=("tiny",))
async def lost_but_acknowledged(s: System) -> None:
    """Packets queued for a resend that waits are acknowledged first: the resend is cancelled, counts return to zero. MRC-REQ-068, 070 and R-16."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=13, glob={"nack_retx_time": 30_000})
    withheld = s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None)
    s.write(A, 4 * 256)
    await w.until(lambda: len(w.data(A)) == 4 and len(w.records(B, Kind.RECEIVE, write=1)) == 4, "four packets at B")
    for frame in w.data(A)[1:3]:
        nack(s, A, frame, NackReason.NO_PKT_BUFFER)
    await w.until(lambda: len(w.records(A, Kind.NACK, drop=0xFF)) == 2, "two NACKs taken")
    need(w.context(w.now(A))["hold"] == 1, "retransmissions held")
    s.native.rule_clear(withheld)
    await s.done()
    need(len(w.records(A, Kind.RETIRE, was_lost=1)) == 2 and len(w.records(A, Kind.RETIRE)) == 4, "two of four retired from LOST")
    _no_resend(w)
    context = w.context(w.now(A))
    need(context["inflight"] == 0 and context["unretired"] == 0, "nothing in flight", context)


@scenario(presets=("tiny",))
async def asymmetric_losses(s: System) -> None:
    """Of 64 packets the second and the last but one are lost, on different paths: exactly these are resent. MRC-REQ-069, 084 and R-04."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=6, active=2, psn_a=0xFFFFF0, glob={"reo_wnd": 20})
    missing = (0xFFFFF1, 0x00002E)
    rules = [s.native.rule("drop", nic=A, psn=psn, rtx=0) for psn in missing]
    s.write(A, 64 * 256)
    await s.done()
    need([s.native.rule_hits(rule) for rule in rules] == [1, 1], "both lost")
    lost = {r.body["psn"] for r in w.records(A, Kind.JUDGE)} | {r.body["psn"] for r in w.records(A, Kind.SEND, rtx=1)}
    need(lost == set(missing), "exactly these two judged and resent", lost)
    need(len(w.records(B, Kind.RECEIVE, owner=RSP, write=1)) == 64, "each packet written once")
    await w.recovered()
