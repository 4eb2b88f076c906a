"""Requestor: retransmission timer, retry limit, probes, ageing of matches. MRC-REQ-090 to MRC-REQ-099, MRC-REQ-156."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.config import EvConfig, QpConfig, StepError
from model.paths import health
from model.req_state import expiry_ticks
from model.requestor import FeedbackFields
from model.spec import Command, Health, Kind, MFlag, NackReason, WcStatus

from .req_bench import EV_BASE, Bench

T = 2048  # ticks of 2^8 units


@pytest.mark.parametrize("exponent", range(25))
def test_expiry_sequence(exponent: int) -> None:
    """MRC-REQ-090, R-20: T = 1.024 us x 2^t = 8 x 2^t ticks for the linear tries, then doubled each time, at most 2^24 units."""
    config = QpConfig(timer_exp=exponent, linear_cnt=2)
    want = [min(8 << exponent << extra, 8 << 24) for extra in (0, 0, 1, 2, 3)]
    assert [expiry_ticks(config, k) for k in range(1, 6)] == want
    assert expiry_ticks(QpConfig(timer_exp=exponent, linear_cnt=0), 1) == min(16 << exponent, 8 << 24)


def test_timer_runs_with_unfinished_messages() -> None:
    """MRC-REQ-091: started by the post that ends idleness, not moved by later posts; stopped by the last completion; invariant 17."""
    b = Bench()
    b.post(100)
    assert (b.q.timer_on, b.q.timer_deadline) == (1, b.now + T)
    b.wait(50)
    b.post(100)
    assert b.q.timer_deadline == b.now - 50 + T
    outs = b.send_all()
    b.wait(10)
    b.requestor.ack(0, FeedbackFields(psn=outs[0].psn, syndrome=0x1F), b.now)
    assert b.q.timer_deadline == b.now + T
    b.requestor.ack(0, FeedbackFields(psn=outs[1].psn, syndrome=0x1F), b.now)
    assert b.q.timer_on == 0


def test_only_progress_restarts_the_timer() -> None:
    """MRC-REQ-091, R-17: SACKs that do not move unack_psn leave the deadline; one that does restarts timer, retry and k."""
    b = Bench()
    b.post(256 * 10)
    outs = b.send_all()
    deadline = b.q.timer_deadline
    for out in outs[1:5]:
        b.wait(10)
        b.peer.arrive(out)
        b.sack(out)
    assert b.q.timer_deadline == deadline
    b.q.retry = b.q.expiry = 2
    b.peer.arrive(outs[0])
    b.sack(outs[0])
    assert (b.q.timer_deadline, b.q.retry, b.q.expiry) == (b.now + T, 0, 0)


def test_timeout_exactly_at_the_deadline() -> None:
    """MRC-REQ-090, R-20: illegal one tick early, and while the timer is off; due from the deadline on, across the 32-bit wrap."""
    b = Bench()
    with pytest.raises(StepError, match="timer is off"):
        b.requestor.timeout(0, b.now)
    b.now = (1 << 32) - 100
    b.post(100)
    b.send()
    assert b.requestor.next_deadline(0, b.now) == b.now + 282
    b.now += T - 1
    with pytest.raises(StepError, match="deadline"):
        b.requestor.timeout(0, b.now)
    assert Kind.TIMEOUT not in b.kinds()
    b.wait()
    assert Kind.TIMEOUT in b.kinds()
    b.requestor.timeout(0, b.now)
    assert b.q.timer_deadline == (b.now + T) & 0xFFFFFFFF


def test_timeout_loses_the_head_alone() -> None:
    """MRC-REQ-092: the head becomes LOST, its EV ASSUMED_BAD, it is resent whatever cwnd and hold say; the others wait for evidence."""
    b = Bench(cwnd=3 * 344)
    b.post(256 * 10)
    outs = b.send_all()
    b.wait(T)
    result = b.requestor.timeout(0, b.now)
    assert (result.head_lost, result.evi, result.credit) == (1, outs[0].evi, 0)
    assert b.q.lost == b.q.bit(100) and health(b.q.path, outs[0].evi) == Health.ASSUMED_BAD
    b.q.inflight += 10_000
    assert b.requestor.candidate(0, b.now) == (1, 100)
    again = b.send(rtx=1)
    assert again.evi != outs[0].evi and b.q.head_free == 0
    assert b.requestor.candidate(0, b.now) is None
    assert b.q.timer_deadline == b.now + T


def test_timeout_of_a_lost_head_lifts_the_hold() -> None:
    """MRC-REQ-092: LOST already: no second cut, the hold is lifted and the head may go."""
    b = Bench()
    b.post(256 * 3)
    outs = b.send_all()
    fields = FeedbackFields(nack_psn=100, nack_reason=NackReason.NO_RESOURCE, entropy=outs[0].ev)
    b.wait(T - 100)
    b.requestor.nack(0, fields, b.now)
    assert b.q.hold and b.requestor.candidate(0, b.now) is None
    b.wait(100)
    bytes_before = b.q.inflight
    assert b.requestor.timeout(0, b.now).head_lost == 0
    assert (b.q.hold, b.q.head_free, b.q.inflight) == (0, 1, bytes_before)
    assert health(b.q.path, outs[0].evi) == Health.GOOD
    assert b.requestor.candidate(0, b.now) == (1, 100)


def test_timeout_without_unacknowledged_psn_wants_a_probe() -> None:
    """MRC-REQ-094: the transport ACK was lost: a probe asks for it; also when the head is SACKed but not retired yet."""
    b = Bench()
    b.post(100)
    out = b.send()
    b.peer.arrive(out)
    b.sack(out)
    b.wait(T)
    assert b.requestor.timeout(0, b.now).head_lost == 0 and b.q.want_probe == 1
    assert Kind.PROBE in b.kinds()
    ack = b.peer.ack()
    assert ack is not None
    b.requestor.ack(0, ack, b.now)
    assert b.q.want_probe == 0 and Kind.PROBE not in b.kinds(), "MRC-REQ-096: it came after all"
    unsent = Bench()
    unsent.post(100)
    unsent.wait(T)
    unsent.requestor.timeout(0, unsent.now)
    assert unsent.q.want_probe == 1 and unsent.q.lost == 0, "nothing was sent"


def test_retry_limit() -> None:
    """MRC-REQ-093, R-22: linear + exponential expiries at T, T, 2T, 4T ..., then RETRY_EXCEEDED; exp_cnt 25 never gives up."""
    b = Bench(linear_cnt=2, exp_cnt=2)
    b.post(100)
    b.send()
    start, times = b.now, []
    while b.q.fault is None:
        deadline = b.requestor.next_deadline(0, b.now)
        assert deadline is not None
        b.now = deadline
        if Kind.TIMEOUT in b.kinds():
            times.append(b.now - start)
            b.requestor.timeout(0, b.now)
            if b.q.fault is None:
                b.send(rtx=1)
        elif Kind.PROBE in b.kinds():
            b.requestor.probe(0, 0 if b.requestor.probe_possible(0, 0, b.now, b.room) else 1, b.now, b.room)
    assert times == [T, 2 * T, 4 * T, 8 * T]
    b.settle()
    assert [c.status for c in b.completions] == [WcStatus.RETRY_EXCEEDED]
    assert b.kinds() == []
    for_ever = Bench(linear_cnt=1, exp_cnt=25)
    for_ever.post(100)
    for_ever.requestor.port(0, for_ever.now)
    for _ in range(300):
        for_ever.now += 8 << 24
        for_ever.requestor.timeout(0, for_ever.now)
    assert for_ever.q.fault is None and for_ever.q.retry == 255


def test_tail_probe_timer() -> None:
    """MRC-REQ-095, MRC-REQ-096: probe_time after the first send, feedback or the last probe; no PSN, credit or cwnd; stops when all is
    done."""
    b = Bench(cwnd=400)
    b.post(300)
    out = b.send()
    b.wait(281)
    assert Kind.PROBE not in b.kinds()
    with pytest.raises(StepError, match="no tail probe"):
        b.requestor.probe(0, 0, b.now, b.room)
    b.wait()
    assert b.kinds() == [Kind.PROBE]
    before = (b.q.next_psn, b.q.inflight, [e.credit for e in b.q.ev])
    probe = b.requestor.probe(0, 0, b.now, b.room)
    assert (probe.slot, probe.id, probe.send_tick) == (0, 0, b.now & 0xFFFF)
    assert probe.evi != out.evi and probe.ev == EV_BASE + probe.evi and probe.plane == probe.evi // 4
    assert before == (b.q.next_psn, b.q.inflight, [e.credit for e in b.q.ev])
    assert b.q.tx_pending == 1 and b.kinds() == []
    b.wait(100)
    b.peer.arrive(out)
    b.sack(out)
    assert b.q.probe_ref == b.now and b.q.probe_on
    last = b.send()
    b.peer.arrive(last)
    b.sack(last)
    assert b.q.probe_on, "the transport ACK is still missing"
    ack = b.peer.ack()
    assert ack is not None
    b.requestor.ack(0, ack, b.now)
    assert b.q.probe_on == 0 and b.q.want_probe == 0


def test_probe_departure_and_answer() -> None:
    """MRC-REQ-076, MRC-REQ-083, MRC-REQ-099: the slot takes the frame's timestamp; the answer must name id, EV and tick; once."""
    b = Bench()
    b.post(100)
    b.send()
    b.wait(282)
    probe = b.requestor.probe(0, 0, b.now, b.room)
    depart = dict(probe=1, psn=0, evi=probe.evi, send_tick=probe.send_tick, tick=probe.send_tick + 5, dropped=0, read_error=0)
    assert b.requestor.depart(0, **depart, now=b.now).applied == 1
    answer = b.peer.sack(pr=1, probe_id=probe.id, entropy=probe.ev, echo_timestamp=probe.send_tick + 5)
    assert b.requestor.sack(0, replace(answer, probe_id=probe.id + 1), b.now).ev_found == 0
    b.now += 40
    result = b.requestor.sack(0, answer, b.now)
    assert (result.ev_found, result.matched, result.evi) == (1, 1, probe.evi) and b.q.ev[probe.evi].rtt_last == 35
    assert b.requestor.sack(0, answer, b.now).ev_found == 0, "the slot is used up"


def test_probe_answer_judges_the_tail() -> None:
    """MRC-REQ-084, MRC-REQ-095: tail loss: the SACK of the probe covers the lost last PSN."""
    b = Bench()
    b.post(100)
    out = b.send()
    b.wait(282)
    probe = b.requestor.probe(0, 0, b.now, b.room)
    b.wait(40)
    b.requestor.sack(0, b.peer.sack(pr=1, probe_id=probe.id, entropy=probe.ev, echo_timestamp=probe.send_tick), b.now)
    assert b.requestor.judge_list(0) == [out.psn]


def bad_evs(b: Bench, count: int) -> list[int]:
    """Sends and lets ALWAYS_SKIP feedback make ``count`` EVs ASSUMED_BAD."""
    found = []
    for _ in range(count):
        out = b.send()
        b.peer.arrive(out)
        b.sack(out, mflag=MFlag.ALWAYS_SKIP)
        found.append(out.evi)
    return found


def test_ev_probes_in_rotation() -> None:
    """MRC-REQ-097, MRC-REQ-098: armed by the first ASSUMED_BAD EV, one per T, cyclic by index, planes that are down skipped."""
    b = Bench()
    b.post(256 * 100)
    assert set(bad_evs(b, 1)) == {0} and b.q.bad_probe_at == b.now + T
    b.wait(10)
    assert set(bad_evs(b, 2)) == {4, 1}
    assert b.q.bad_probe_at == b.now - 10 + T, "the first one counts"
    b.now -= 10
    with pytest.raises(StepError, match="no EV probe"):
        b.requestor.probe(0, 1, b.now, b.room)
    order = []
    for turn in range(5):
        b.wait(T)
        if turn == 3:
            b.requestor.port(0b01, b.now)
        probe = b.requestor.probe(0, 1, b.now, b.room)
        assert probe.id == 0x8000 | turn and b.q.bad_probe_at == b.now + T
        order.append(probe.evi)
    assert order == [1, 4, 0, 1, 0]
    b.requestor.port(0b10, b.now)
    b.wait(T)
    with pytest.raises(StepError, match="plane that is up"):
        b.requestor.probe(0, 1, b.now, 0b01)
    assert not b.requestor.probe_possible(0, 1, b.now, 0b01)


def test_unanswered_ev_probe_resets_the_count() -> None:
    """MRC-REQ-098, MRC-REQ-150: no answer within T: the run of answers starts again; three in a row bring the EV back and end the
    probes."""
    b = Bench()
    b.post(256 * 100)
    (evi,) = bad_evs(b, 1)

    def probe(answer: bool) -> None:
        b.wait(T)
        out = b.requestor.probe(0, 1, b.now, b.room)
        if answer:
            b.requestor.sack(0, b.peer.sack(pr=1, probe_id=out.id, entropy=out.ev, echo_timestamp=out.send_tick), b.now)

    probe(True)
    probe(True)
    probe(False)
    probe(True)
    assert b.q.ev[evi].probe_ok == 1
    probe(True)
    assert health(b.q.path, evi) == Health.ASSUMED_BAD
    probe(True)
    assert health(b.q.path, evi) == Health.GOOD
    b.wait(T)
    pending = b.q.tx_pending
    ended = b.requestor.probe(0, 1, b.now, b.room)
    assert ended.send_tick == 0 and b.q.bad_probe_on == 0 and b.q.tx_pending == pending


def test_recovered_run_counts_from_zero() -> None:
    """MRC-REQ-147: an EV that becomes ASSUMED_BAD again needs three new answers, also when the controller interrupted the first run."""
    b = Bench()
    b.post(256 * 100)
    (evi,) = bad_evs(b, 1)
    b.q.ev[evi].probe_ok = 2
    b.requestor.control(Command.EV_STATE, 0, evi, 1, b.now)
    b.requestor.control(Command.EV_STATE, 0, evi, 0, b.now)
    assert health(b.q.path, evi) == Health.GOOD
    while True:
        out = b.send()
        b.peer.arrive(out)
        b.sack(out, mflag=MFlag.ALWAYS_SKIP if out.evi == evi else MFlag.NONE)
        if out.evi == evi:
            break
    assert health(b.q.path, evi) == Health.ASSUMED_BAD and b.q.ev[evi].probe_ok == 0


def test_ev_age() -> None:
    """MRC-REQ-156: the valid bit of a match goes from 2^13 ticks on; not before."""
    b = Bench()
    b.post(256 * 4)
    out = b.send()
    b.peer.arrive(out)
    b.sack(out)
    seen = b.now
    with pytest.raises(StepError, match="no match older"):
        b.requestor.ev_age(0, out.evi, seen + 8191)
    assert Kind.EV_AGE not in [d.kind for d in b.requestor.pending(0, seen + 8191)]
    due = [d for d in b.requestor.pending(0, seen + 8192) if d.kind == Kind.EV_AGE]
    assert [d.arg for d in due] == [out.evi]
    b.requestor.ev_age(0, out.evi, seen + 8192)
    assert not b.q.ev[out.evi].match_valid and b.requestor.old_matches(0, seen + 9000) == []


def test_dead_path_costs_at_most_its_credit() -> None:
    """MRC-REQ-097, MRC-REQ-144: one dead EV of two: at most path_credit packets die there before it is ASSUMED_BAD, and nothing follows
    them."""
    evs = [EvConfig(EV_BASE + i, int(i in (0, 1)), Health.GOOD) for i in range(8)]
    b = Bench(evs=evs, path_credit=4, ev_min_active=1)
    b.post(256 * 64)
    died = 0
    for _ in range(400):
        b.wait(20)
        b.settle()
        out = b.requestor.try_send(0, b.now, b.room)
        if out is None:
            continue
        b.depart(out)
        if out.evi == 1:
            died += 1
            continue
        b.wait(20)
        b.peer.arrive(out)
        b.sack(out)
    assert died <= 4 and health(b.q.path, 1) == Health.ASSUMED_BAD
    assert b.peer.cack == 163 and b.q.unretired == 0
