"""Directed scenarios: NACKs of each kind, those of the hardware and those that only a peer with less memory sends (forged)."""

from __future__ import annotations

from model.spec import Kind, NackReason, Opcode, QpState, WcStatus
from verif.system.env import A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import FEEDBACK, REQ, RSP, Watch, nack, need

HELD = (NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE, NackReason.PSN_OOR_WINDOW)


@scenario(presets=("tiny",))
async def trimmed(s: System) -> None:
    """Trimmed packets, in the fabric and at the last hop: NACKs, one resend each; TRIMMED takes the EV to SKIP, the last hop's does not.

    Original and cut length fields. MRC-REQ-086, 146, 200 and invariants 13, 14.
    """
    w = Watch(s)
    await s.connect(mtu=1, active=2, timer_exp=12)
    rules = []
    for cut in (0, 1):
        s.native.set("trim_cut_lengths", cut)
        for action in ("trim", "trim_lasthop"):
            rules.append(s.native.rule(action, nic=A, opcode=int(Opcode.WRITE_MIDDLE), rtx=0))
            s.write(A, 5 * 512 + 9, imm=len(rules))
            await s.done()
            await w.rest()
    need([s.native.rule_hits(rule) for rule in rules] == [1] * 4, "four trims")
    taken = w.records(A, Kind.NACK)
    reasons = [r.body["rx"]["ext"]["nack_reason"] for r in taken]
    need(reasons == [NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP] * 2 and all(r.body["drop"] == 0xFF for r in taken), "a NACK of its kind each", reasons)
    for r, reason in zip(taken, reasons):
        plane, ev = divmod(r.body["evi"], s.p.evs)
        row = w.paths(r)["planes"][plane]
        need((row["skip"] >> ev & 1) == (reason == NackReason.TRIMMED) and not row["bad"], "TRIMMED alone penalises the EV", row)
    resent = w.records(A, Kind.SEND, rtx=1)
    need([r.body["psn"] for r in resent] == [r.body["rx"]["ext"]["nack_psn"] for r in taken], "each resent once")
    need(all(a.body["evi"] != b.body["evi"] for a, b in zip(taken, resent)), "on another EV")
    need(not w.records(A, Kind.TIMEOUT), "no expiry")


@scenario(presets=("tiny",))
async def trim_nack_off(s: System) -> None:
    """Without the capability a trimmed packet is dropped and counted; loss evidence or the timer repair it. MRC-REQ-200."""
    w = Watch(s)
    await s.connect(mtu=1, active=2, timer_exp=6, trim_nack=0)
    rule = s.native.rule("trim", nic=A, opcode=int(Opcode.WRITE_MIDDLE), rtx=0)
    s.write(A, 5 * 512)
    await s.done()
    counters = await s.counters(B)
    need(s.native.rule_hits(rule) == 1 and counters["drop_trim_ignored"] == 1 and not w.packets(B, Opcode.NACK), "dropped, no NACK")
    need(len(w.data(A, rtx=1)) >= 1, "resent")
    await w.recovered()


@scenario(presets=("tiny",))
async def nack_resources(s: System) -> None:
    """NACKs for want of resources and PSN_OOR_WINDOW: resent only after the hold, which each renews; the EV stays as it is.

    MRC-REQ-086 and facts 4, NACK.
    """
    hold = 200
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=12, glob={"nack_retx_time": hold})
    for reason in HELD:
        withheld = s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None)
        already = len(w.data(A))
        s.write(A, 3 * 256)
        await w.until(lambda already=already: len(w.data(A)) == already + 3, "three packets")
        nack(s, A, w.data(A)[-2], reason)
        await w.until(lambda reason=reason: bool(w.records(A, Kind.NACK, nack_reason=int(reason))), "the NACK")
        nack(s, A, w.data(A)[-1], reason)
        await w.until(lambda reason=reason: len(w.records(A, Kind.NACK, nack_reason=int(reason))) == 2, "the second NACK")
        await w.until(lambda already=already: len(w.data(A)) == already + 5, "two retransmissions")
        second = w.records(A, Kind.NACK, nack_reason=int(reason))[-1]
        resent = w.records(A, Kind.SEND)[already + 3 :]
        need([r.body["rtx"] for r in resent] == [1, 1] and resent[0].tick - second.tick >= hold, "held for the time after the second NACK", resent)
        s.native.rule_clear(withheld)
        await s.done()
    need(len(w.data(A, rtx=1)) == 2 * len(HELD), "two resends for each reason")
    need(all(r.body["drop"] == 0xFF for r in w.records(A, Kind.NACK)), "each NACK taken")
    need(all(not row["skip"] and not row["bad"] for r in w.records(A, Kind.NACK) for row in w.paths(r)["planes"]), "no EV penalised")
    await w.rest()
    need(w.context(w.now(A))["hold"] == 0, "no hold left")


@scenario(presets=("tiny",))
async def nack_of_head(s: System) -> None:
    """NACKs of the head count as tries, at most one per T: a peer that never has room ends the QP. MRC-REQ-086, 110."""
    w = Watch(s)
    await s.connect(mtu=0, active=2, timer_exp=13, linear_cnt=1, exp_cnt=0)
    s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None)
    s.write(A, 2 * 256, status=WcStatus.RETRY_EXCEEDED)
    await w.until(lambda: len(w.data(A)) == 2, "two packets")
    nack(s, A, w.data(A)[1], NackReason.NO_RESOURCE)
    await s.step(1000)
    need(w.context(w.now(A))["retry"] == 0, "a NACK that is not the head's is no try")
    nack(s, A, w.data(A)[0], NackReason.NO_RESOURCE)
    await s.done()
    need(len(w.records(A, Kind.QP_ERROR, owner=REQ, cause=int(WcStatus.RETRY_EXCEEDED))) == 1, "retry counter exceeded")
    need(not w.records(A, Kind.TIMEOUT), "by the NACK alone")


@scenario(presets=("tiny",))
async def nack_unexpected(s: System) -> None:
    """NACK UNEXP_EVENT: the QP goes to ERROR, the first message ends with a remote operation error, the next is flushed, later posts too.

    MRC-REQ-086, 065, 274 and O-08.
    """
    w = Watch(s)
    await s.connect(0, mtu=0, timer_exp=12)
    await s.connect(1, mtu=0, timer_exp=12)
    s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None, qp=s.p.qpn_base)
    s.write(A, 300, status=WcStatus.REMOTE_OPERATION)
    s.write(A, 300, status=WcStatus.FLUSHED)
    s.write(A, 2000, 1, imm=5)
    await w.until(lambda: len(w.data(A, 0)) == 4, "four packets")
    nack(s, A, w.data(A, 0)[2], NackReason.UNEXP_EVENT)
    await s.done()
    s.write(A, 100, status=WcStatus.FLUSHED)
    s.write(A, 3000, 1)
    await s.done()
    await w.rest()
    need(w.state(A, REQ) == w.state(A, RSP) == QpState.ERROR and w.state(B, RSP) == QpState.RTS, "both owners of A in ERROR, B unchanged")
    need([r.body["cause"] for r in w.records(A, Kind.QP_ERROR, 0, owner=RSP)] == [WcStatus.LOCAL_QP_OPERATION], "the other owner follows")
    flushed = [c for c in s.completions if c.nic == A and c.recv and c.status == WcStatus.FLUSHED]
    need(len(flushed) == 8, "every receive entry of A flushed", flushed)
    need(w.state(A, REQ, 1) == QpState.RTS, "the other QP goes on")
