"""Directed scenarios: retry limits, NAKs, QPs in ERROR with traffic in flight, RESET and use again."""

from __future__ import annotations

from model.spec import Command, Kind, Opcode, PostStatus, QpState, Syndrome, WcStatus
from verif.system.env import A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import FEEDBACK, REQ, RSP, Watch, need


async def modify(s: System, nic: int, state: QpState, qp: int = 0) -> None:
    """The host moves a QP."""
    need(await s.command(nic, Command.MODIFY, qp, 0, int(state)) == PostStatus.OK, f"{state.name} taken")
    if state == QpState.RESET:
        s.receives.pop((nic, qp), None)


def _errors(w: Watch, nic: int, owner: int, qp: int = 0) -> list[WcStatus]:
    return [WcStatus(r.body["cause"]) for r in w.records(nic, Kind.QP_ERROR, qp, owner=owner)]


@scenario(presets=("tiny",))
async def retry_limit(s: System) -> None:
    """Nothing of QP 0 arrives: after 2 linear and 2 exponential tries its first message ends in error, the next is flushed; QP 1 lives on.

    MRC-REQ-090, 093, 065, 274 and R-20, R-22, O-08.
    """
    w = Watch(s)
    await s.connect(0, mtu=0, timer_exp=4, linear_cnt=2, exp_cnt=2)
    await s.connect(1, mtu=0, timer_exp=12)
    s.native.rule("drop", nic=A, qp=s.p.qpn_base, count=None)
    s.write(A, 600, status=WcStatus.RETRY_EXCEEDED)
    s.write(A, 100, imm=1, status=WcStatus.FLUSHED)
    s.imms[B, 0].clear()  # it never arrives
    s.write(A, 8000, 1, imm=2)
    s.write(B, 5000, 1)
    await s.done()
    expiries = [r.tick for r in w.records(A, Kind.TIMEOUT, 0)]
    posted = w.records(A, Kind.POST, 0)[0].tick
    gaps = [b - a for a, b in zip([posted, *expiries], expiries)]
    need(len(gaps) == 4 and all(wanted <= gap <= wanted + 16 for gap, wanted in zip(gaps, (128, 128, 256, 512))), "expiries after T, T, 2 T, 4 T", gaps)
    need(_errors(w, A, REQ) == [WcStatus.RETRY_EXCEEDED] and _errors(w, A, RSP) == [WcStatus.LOCAL_QP_OPERATION], "both owners in ERROR")
    s.write(A, 50, status=WcStatus.FLUSHED)
    s.write(A, 700, 1)
    await s.done()
    sent = len(w.data(A, 0))
    await s.step(4000)
    need(len(w.data(A, 0)) == sent, "nothing more leaves for QP 0")
    need(w.state(A, REQ, 1) == QpState.RTS and not w.data(A, 1, rtx=1), "QP 1 untouched")


async def _refused(s: System, w: Watch, syndrome: Syndrome, status: WcStatus) -> None:
    """A NAK of this syndrome reached A and ended its first message; both ends are in ERROR."""
    naks = w.packets(B, Opcode.ACK, syndrome=int(syndrome))
    need(len(naks) >= 1 and _errors(w, A, REQ) == [status], f"NAK {syndrome:#x} ends the QP with {status.name}", (naks, _errors(w, A, REQ)))
    need([w.state(nic, owner) for nic in (A, B) for owner in (REQ, RSP)] == [QpState.ERROR] * 4, "all four owners in ERROR")


@scenario(presets=("tiny",))
async def nak_access(s: System) -> None:
    """A wrong R_Key: NAK 0x62, nothing written; the message ends with REMOTE_ACCESS, the next is flushed. MRC-REQ-088, 199, 240."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12)
    s.write(A, 256 * 3)
    await s.done()
    bad = s.write(A, 256 * 3, rkey=0x1234_0001, status=WcStatus.REMOTE_ACCESS)
    s.write(A, 200, status=WcStatus.FLUSHED)
    await s.done()
    await w.rest()
    await _refused(s, w, Syndrome.NAK_REMOTE_ACCESS, WcStatus.REMOTE_ACCESS)
    need(s.native.read(B, bad.target, 768) == bytes([0xA5]) * 768, "nothing written")
    counters = await s.counters(B)
    need(counters["drop_naked"] == 1, "one packet refused", counters)


@scenario(presets=("tiny",))
async def nak_no_receive(s: System) -> None:
    """A WriteIMM without a receive entry: NAK 0x63, no RNR. MRC-REQ-255 and invariant 15."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, receives=1)
    s.write(A, 300, imm=1)
    await s.done()
    s.write(A, 300, imm=2, status=WcStatus.REMOTE_OPERATION)
    s.imms[B, 0].clear()
    await s.done()
    await w.rest()
    await _refused(s, w, Syndrome.NAK_REMOTE_OPERATION, WcStatus.REMOTE_OPERATION)


@scenario(presets=("tiny",))
async def nak_lost(s: System) -> None:
    """The NAK is lost: a probe of the waiting sender gets it again, and nothing else. MRC-REQ-095, MRC-REQ-240."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12)
    lost = s.native.rule("drop", nic=B, opcode=int(Opcode.ACK))
    s.write(A, 256, rkey=0x1234_0001, status=WcStatus.REMOTE_ACCESS)
    await s.done()
    await w.rest()
    need(s.native.rule_hits(lost) == 1 and len(w.records(A, Kind.PROBE)) == 1, "a lost NAK and one probe")
    need(len(w.packets(B, Opcode.ACK)) == 2 and not w.packets(B, Opcode.SACK), "the NAK twice, no SACK")
    await _refused(s, w, Syndrome.NAK_REMOTE_ACCESS, WcStatus.REMOTE_ACCESS)


@scenario(presets=("tiny",))
async def error_reset_reuse(s: System) -> None:
    """The host moves a QP to ERROR with traffic in flight, then both ends to RESET and connects them again with other numbers: it works as new.

    QP 1 goes on all the time. MRC-REQ-055..057, 065, 245..247, 275 and O-08, R-05.
    """
    w = Watch(s)
    await s.connect(0, mtu=0, timer_exp=10, active=2)
    await s.connect(1, mtu=0, timer_exp=12)
    s.write(A, 256 * 90, status=WcStatus.LOCAL_QP_OPERATION)
    s.write(A, 256 * 9, status=WcStatus.FLUSHED)
    s.write(A, 256 * 60, 1)
    await w.until(lambda: len(w.data(A, 0)) >= 20, "traffic in flight", grain=50)
    need(w.context(w.now(A))["unretired"] > 0, "packets unacknowledged")
    await modify(s, A, QpState.ERROR)
    await s.done()
    need(_errors(w, A, REQ) == [WcStatus.LOCAL_QP_OPERATION] and _errors(w, A, RSP) == [WcStatus.LOCAL_QP_OPERATION], "ERROR by the host")
    sent = len(w.data(A, 0))
    await s.step(3000)
    need(len(w.data(A, 0)) == sent, "nothing more leaves")
    await modify(s, B, QpState.ERROR)
    await w.rest()
    need(not s.receives[A, 0] and not s.receives[B, 0], "every receive entry flushed")
    for nic in (A, B):
        await modify(s, nic, QpState.RESET)
    reset = w.records(A, Kind.CONTROL, 0, owner=REQ, op=int(Command.MODIFY))[-1]
    context = w.context(reset)
    need(all(value == 0 for name, value in context.items() if isinstance(value, int)), "all state zero", context)
    await s.connect(0, psn_a=0xFFFFFE, psn_b=5, mtu=1, timer_exp=12)
    first = len(w.data(A, 0))
    for n in range(4):
        s.write(A, 1500, imm=n)
        s.write(B, 700 + n)
    await s.done()
    again = w.data(A, 0)[first:]
    need(again[0].packet.psn == 0xFFFFFE and again[0].packet.msn == 0 and not any(f.packet.rtx for f in again), "new numbers, clean start")
    need([c.imm for c in s.completions if c.nic == B and c.recv and c.status == WcStatus.SUCCESS] == [0, 1, 2, 3], "four immediates")


@scenario(presets=("tiny",))
async def peer_error(s: System) -> None:
    """The peer's QP is in ERROR: it answers nothing, counts what comes; the sender gives up by its retry counter. MRC-REQ-241, 110."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=4, linear_cnt=2, exp_cnt=1)
    s.write(A, 600)
    await s.done()
    await modify(s, B, QpState.ERROR)
    answers = len([f for f in w.sent if f.nic == B])
    s.write(A, 600, status=WcStatus.RETRY_EXCEEDED)
    await s.done()
    await w.rest()
    need(len(w.records(A, Kind.TIMEOUT)) == 3 and _errors(w, A, REQ) == [WcStatus.RETRY_EXCEEDED], "three expiries, then ERROR")
    counters = await s.counters(B)
    need(counters["drop_qp_error"] >= 4 and len([f for f in w.sent if f.nic == B]) == answers, "counted, not answered", counters)


@scenario(presets=("tiny",))
async def late_feedback(s: System) -> None:
    """SACKs and ACKs that arrive after the QP is in ERROR and after RESET are dropped, each under its cause. MRC-REQ-078."""
    w = Watch(s)
    await s.connect(mtu=0, timer_exp=12, receives=0)
    for delay in (3000, 12_000):
        s.native.rule("delay", nic=B, opcode=FEEDBACK, skip=0, count=1, argument=delay)
    s.write(A, 100, status=WcStatus.LOCAL_QP_OPERATION)
    await w.until(lambda: len([f for f in w.sent if f.nic == B]) >= 2, "two answers on their way")
    await modify(s, A, QpState.ERROR)
    await s.done()
    await w.until(lambda: any(r.body["drop"] != 0xFF for r in w.records(A, Kind.SACK) + w.records(A, Kind.ACK)), "the first late answer")
    await modify(s, A, QpState.RESET)
    await w.rest()
    counters = await s.counters(A)
    need(counters["drop_qp_error"] == 1 and counters["drop_qp_state"] == 1, "one dropped in ERROR, one in RESET", counters)
