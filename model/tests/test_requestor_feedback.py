"""Requestor: SACK, NACK, ACK, RETIRE, JUDGE. MRC-REQ-066 to 069 and 079 to 088, 152, 154."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.config import EvConfig, GlobalConfig, StepError
from model.paths import health
from model.req_results import NackOut, SackOut, SendOut
from model.requestor import FeedbackFields
from model.spec import Drop, Health, Kind, MFlag, NackReason, WcStatus

from .req_bench import EV_BASE, SIZES, Bench


def sent(count: int, **config: int) -> tuple[Bench, list[SendOut]]:
    """A bench that has sent ``count`` packets of one long message, one tick apart."""
    b = Bench(SIZES, evs=None, glob=None, **config)
    b.post(256 * 1000)
    outs = []
    for _ in range(count):
        outs.append(b.send())
        b.wait()
    return b, outs


def raw(b: Bench, fields: FeedbackFields) -> SackOut:
    return b.requestor.sack(0, fields, b.now)


def nack(b: Bench, out: SendOut, reason: int, **changes: int) -> NackOut:
    fields = FeedbackFields(nack_psn=out.psn, nack_reason=reason, entropy=out.ev, echo_timestamp=b.tick_of(out))
    return b.requestor.nack(0, replace(fields, **changes), b.now)


def test_sack_range() -> None:
    """MRC-REQ-079: unack_psn - 2^15 <= cack_psn <= max_psn_sent; outside: SACK_RANGE, nothing changes."""
    b, _ = sent(5)
    before = repr(b.q)
    for cack in (105, (99 - (1 << 15) - 1) & 0xFFFFFF, 0x800000):
        assert raw(b, FeedbackFields(cack_psn=cack)).drop == Drop.SACK_RANGE
    assert repr(b.q) == before
    assert raw(b, FeedbackFields(cack_psn=(99 - (1 << 15)) & 0xFFFFFF)).drop == 0xFF
    assert raw(b, FeedbackFields(cack_psn=104, rcvd_bytes=7)).drop == 0xFF and b.q.unack_psn == 104


def test_forged_sack() -> None:
    """MRC-REQ-079: rcvd_bytes beyond ceil(all sent / 256) drops the whole SACK."""
    b, outs = sent(3)
    limit = -(-3 * (256 + 88) // 256)
    before = repr(b.q)
    assert raw(b, FeedbackFields(cack_psn=102, rcvd_bytes=limit + 1)).drop == Drop.SACK_FORGED
    assert repr(b.q) == before
    assert raw(b, FeedbackFields(cack_psn=102, rcvd_bytes=limit)).newly == 256 * limit
    assert b.q.inflight == 3 * 344 - 256 * limit


def test_inflight_follows_rcvd_bytes() -> None:
    """MRC-REQ-081: minus newly; an older SACK finds nothing new; everything ACKED: 0."""
    b, outs = sent(4)
    b.peer.arrive(outs[0])
    old = b.peer.sack(outs[0], b.tick_of(outs[0]))
    b.peer.arrive(outs[1])
    b.sack(outs[1])
    after_second = b.q.inflight
    assert after_second == 4 * 344 - 256 * 3
    assert raw(b, old).newly == 0 and b.q.inflight == after_second
    for out in outs[2:]:
        b.peer.arrive(out)
    b.sack(outs[3])
    assert b.q.inflight == 0 and b.q.unretired == 0 and b.q.rcvd_seen == -(-4 * 344 // 256)


def test_everything_acked_singly_also_clears_inflight() -> None:
    """MRC-REQ-068, invariant 18: the last RETIRE zeroes the bytes in flight even when unack_psn lags behind (ACK overtook the SACK)."""
    b = Bench()
    b.post(512)
    b.post(512)
    outs = b.send_all()
    for out in outs[2:]:
        b.peer.arrive(out)
    b.sack(outs[3])
    assert b.q.unretired == 2
    for out in outs[:2]:
        b.peer.arrive(out)
    b.requestor.ack(0, FeedbackFields(psn=outs[1].psn, syndrome=0x1F), b.now)
    b.settle()
    assert b.q.unretired == 0 and b.q.unack_psn == outs[1].psn and b.q.inflight == 0
    late = b.sack(outs[1])
    assert isinstance(late, SackOut) and late.newly == 0 and b.q.inflight == 0 and b.q.unack_psn == outs[3].psn


def test_retired_head_does_not_alias_a_newer_psn() -> None:
    """MRC-REQ-073, MRC-REQ-080, MRC-REQ-094: unack_psn + 1 may be retired (an ACK overtook the SACK); nothing is sent that shares its place
    in
    the ring before unack_psn passes it, so that an old SACK or the timer cannot take one for the other."""
    b = Bench(req_mpr=1024)
    b.peer.mpr = 8
    b.post(256 * 2)
    b.post(256 * 1000)
    first = [b.send() for _ in range(4)]
    for out in first[2:]:
        b.peer.arrive(out)
    early = b.peer.sack(first[3], b.tick_of(first[3]))
    raw(b, early)
    b.settle()
    for out in first[:2]:
        b.peer.arrive(out)
    b.requestor.ack(0, FeedbackFields(psn=first[1].psn, syndrome=0x1F), b.now)
    b.settle()
    assert b.q.unack_psn == first[1].psn and b.q.unretired == 0
    b.wait(10)
    rest = b.send_all()
    assert b.q.next_psn - 1 - b.q.unack_psn == 128 and len(rest) == 126 and rest[-1].a == 1
    raw(b, replace(early, echo_timestamp=0))
    assert b.q.sacked == 0, "the old SACK's ones name PSNs that are retired"
    out_before = b.q.out
    b.wait(3000)
    assert b.requestor.timeout(0, b.now).head_lost == 0 and b.q.out == out_before and b.q.want_probe == 1
    b.sack(first[3])
    assert len(b.send_all()) == 2


@pytest.mark.parametrize("start", [100, 0xFFFFF0, 0, 63])
def test_bitmap_to_bits(start: int) -> None:
    """MRC-REQ-080, R-04, S-01: ones above unack_psn and below next_psn, at the right PSN whatever base; bits beyond are ignored."""
    b, outs = sent(100, sq_psn=start)
    for index in (1, 62, 63, 64, 99):
        b.peer.arrive(outs[index])
    for base, want in ((0, {1, 62, 63}), (40, {62, 63, 64, 99}), (-30, {1}), (98, {99}), (99, {99}), (100, set())):
        b.q.sacked = 0
        fields = b.peer.sack(base=start + base)
        assert raw(b, replace(fields, sack_bitmap=fields.sack_bitmap | (1 << 63 if base == 98 else 0))).drop == 0xFF
        assert {(psn - start) & 0xFFFFFF for psn in b.q.psns(b.q.sacked)} == want
    b.settle()
    b.check()


def test_resend_cancelled_by_sack() -> None:
    """MRC-REQ-068, MRC-REQ-070, R-16: LOST, then reported received before it was resent: no resend, bytes and credit at 0 in the end."""
    b, outs = sent(3)
    assert nack(b, outs[1], NackReason.TRIMMED_LASTHOP).credit == 0
    assert b.requestor.candidate(0, b.now) == (1, 101)
    for out in outs:
        b.peer.arrive(out)
    raw(b, b.peer.sack(outs[2], b.tick_of(outs[2])))
    candidate = b.requestor.candidate(0, b.now)
    assert candidate is not None and candidate[0] == 0
    assert b.requestor.retire(0, 101, b.now).was_lost == 1
    b.settle()
    assert b.q.inflight == 0 and all(e.credit == 0 for e in b.q.ev)
    b.check()


def test_retire_is_checked() -> None:
    """MRC-REQ-066, MRC-REQ-068."""
    b, outs = sent(3)
    with pytest.raises(StepError, match="not acknowledged"):
        b.requestor.retire(0, 100, b.now)
    b.peer.arrive(outs[0])
    b.sack(outs[0])
    for psn in (100, 103, 99):
        with pytest.raises(StepError, match="not unretired"):
            b.requestor.retire(0, psn, b.now)


def test_evidence_and_judge() -> None:
    """MRC-REQ-069, MRC-REQ-084: covered zeros sent more than reo_wnd before the SACK's packet are lost; a PSN outside the cover never."""
    b, outs = sent(4)
    b.wait(93)
    late = b.send()
    b.peer.arrive(late)
    b.sack(late, settle=False)
    assert b.requestor.judge_list(0) == [], "an acknowledged PSN of the row awaits RETIRE"
    with pytest.raises(StepError, match="is retired"):
        b.requestor.judge(0, 100, b.now)
    b.requestor.retire(0, late.psn, b.now)
    # sent at 1000, 1001, 1002, 1003; the packet at 1097: 97, 96, 95 > 94, and 94 is not
    assert b.requestor.judge_list(0) == [100, 101, 102]
    with pytest.raises(StepError, match="no evidence"):
        b.requestor.judge(0, 103, b.now)
    result = b.requestor.judge(0, 101, b.now)
    assert (result.proved, result.evi, result.credit) == (1, outs[1].evi, 0)
    with pytest.raises(StepError, match="not OUTSTANDING"):
        b.requestor.judge(0, 101, b.now)
    assert b.requestor.judge_list(0) == [100, 102]
    b.check()


def test_evidence_switch_first_only() -> None:
    """MRC-REQ-084: loss_evidence = first_only names cack_psn + 1 alone."""
    b = Bench(glob=GlobalConfig(evidence_first_only=1))
    b.post(256 * 100)
    for _ in range(3):
        b.send()
    b.wait(200)
    late = b.send()
    b.peer.arrive(late)
    b.sack(late, settle=False)
    b.requestor.retire(0, late.psn, b.now)
    assert b.requestor.judge_list(0) == [100]


def test_head_evidence_outside_the_bitmap() -> None:
    """MRC-REQ-084: cack_psn + 1 is covered wherever the bitmap stands; its row's other bits are not."""
    b, outs = sent(100)
    b.wait(200)
    late = b.send()
    b.peer.arrive(late)
    b.sack(late, base=late.psn - 2, settle=False)
    b.requestor.retire(0, late.psn, b.now)
    assert b.requestor.judge_list(0) == [100, 198, 199]


def test_newer_evidence_replaces_the_row() -> None:
    """MRC-REQ-084: a row keeps the cover of one SACK; a PSN that the newer SACK does not cover is not judged by its timestamp."""
    b, outs = sent(40)
    b.peer.arrive(outs[5])
    b.sack(outs[5])
    assert b.q.cover.bit_count() == 39, "covers 100 to 139 but 105, none sent early enough"
    b.wait(300)
    late = b.send()
    b.peer.arrive(late)
    b.sack(late, base=late.psn - 1)
    assert b.q.psns(b.q.lost) == [100, 139], "both rows are touched, by cack_psn + 1 and by the bitmap"


def test_retired_psn_leaves_no_evidence() -> None:
    """MRC-REQ-068, MRC-REQ-084: the next PSN in the same place of the ring starts without evidence."""
    b, outs = sent(2)
    b.wait(50)
    late = b.send()
    b.peer.arrive(late)
    b.sack(late)
    assert b.q.cover & b.q.bit(100)
    for out in outs:
        b.peer.arrive(out)
    b.sack(outs[1], tick=0)
    assert b.q.unretired == 0 and b.q.cover == 0


def test_no_evidence_without_timestamp() -> None:
    """MRC-REQ-062, MRC-REQ-084: an echoed timestamp of 0 is no sample, no match, no evidence."""
    b, _ = sent(3)
    b.wait(500)
    late = b.send()
    b.peer.arrive(late)
    result = b.sack(late, tick=0)
    assert isinstance(result, SackOut) and (result.ev_found, result.matched) == (1, 0)
    assert b.q.cover == 0 and b.q.lost == 0 and not b.q.ev[late.evi].rtt_valid


def test_plain_loss_leaves_the_ev() -> None:
    """MRC-REQ-154: a later packet of the same EV was acknowledged: the PSN is resent, the EV stays GOOD."""
    evs = [EvConfig(EV_BASE + i, int(i in (0, 4)), Health.GOOD) for i in range(8)]
    b = Bench(evs=evs)
    b.post(256 * 100)
    lost = b.send()
    b.wait(200)
    later = [b.send() for _ in range(2)]
    assert later[1].evi == lost.evi
    b.peer.arrive(later[1])
    b.sack(later[1])
    assert b.q.lost == b.q.bit(lost.psn) and health(b.q.path, lost.evi) == Health.GOOD


def test_proved_loss_demotes() -> None:
    """MRC-REQ-097, MRC-REQ-147, MRC-REQ-154: without such an acknowledgement the EV becomes ASSUMED_BAD, and EV probes are armed."""
    b, outs = sent(1)
    b.wait(200)
    later = b.send()
    b.peer.arrive(later)
    b.sack(later)
    assert health(b.q.path, outs[0].evi) == Health.ASSUMED_BAD
    assert b.q.bad_probe_on == 1 and b.q.bad_probe_at == b.now + 2048


def test_path_feedback_needs_the_right_entropy() -> None:
    """MRC-REQ-082, MRC-REQ-152: record of ack_psn, entropy equal, timestamp equal for a match; else EV_UNMATCHED or no match."""
    b, outs = sent(2)
    b.peer.arrive(outs[0])
    good = b.peer.sack(outs[0], b.tick_of(outs[0]), mflag=MFlag.SKIP_ONCE)
    wrong = raw(b, replace(good, entropy=outs[1].ev))
    assert (wrong.ev_found, wrong.matched, wrong.evi) == (0, 0, 0) and b.requestor.drops[Drop.EV_UNMATCHED] == 1
    far = raw(b, replace(good, ack_psn_offset=2))
    assert far.ev_found == 0, "PSN 102 was never sent"
    assert health(b.q.path, outs[0].evi) == Health.GOOD
    stale = raw(b, replace(good, echo_timestamp=b.tick_of(outs[0]) + 1))
    assert (stale.ev_found, stale.matched) == (1, 0) and health(b.q.path, outs[0].evi) == Health.SKIP
    b.now += 49
    match = raw(b, replace(good, mflag=MFlag.ALWAYS_SKIP))
    assert (match.matched, match.evi) == (1, outs[0].evi) and health(b.q.path, outs[0].evi) == Health.ASSUMED_BAD
    assert b.q.ev[outs[0].evi].rtt_last == b.now - 1000
    again = raw(b, replace(good, mflag=MFlag.NONE))
    assert again.matched == 1 and health(b.q.path, outs[0].evi) == Health.ASSUMED_BAD, "data feedback does not heal"


def test_ipv4_compares_the_low_half_of_the_entropy() -> None:
    """MRC-REQ-082, MRC-REQ-085: over IPv4 the echo's high half is 0 and only low halves count."""
    for ipv4 in (0, 1):
        b, outs = sent(3, ipv4=ipv4)
        b.peer.arrive(outs[0])
        result = raw(b, b.peer.sack(outs[0], b.tick_of(outs[0]), entropy=outs[0].ev & 0xFFFF))
        assert (result.ev_found, result.matched) == (ipv4, ipv4)
        ignored = nack(b, outs[1], NackReason.TRIMMED_LASTHOP, entropy=outs[1].ev & 0xFFFF).drop
        assert ignored == (0xFF if ipv4 else Drop.NACK_IGNORED)
        assert nack(b, outs[2], NackReason.TRIMMED_LASTHOP, entropy=outs[2].ev ^ 1).drop == Drop.NACK_IGNORED


@pytest.mark.parametrize(("reason", "skip", "hold"), [
    (NackReason.TRIMMED, 1, 0), (NackReason.TRIMMED_LASTHOP, 0, 0), (NackReason.NO_BITMAP, 0, 1), (NackReason.NO_PKT_BUFFER, 0, 1),
    (NackReason.NO_RESOURCE, 0, 1), (NackReason.PSN_OOR_WINDOW, 0, 1),
])  # fmt: skip
def test_nack_reasons(reason: int, skip: int, hold: int) -> None:
    """MRC-REQ-067, MRC-REQ-086, invariant 14: which reason penalises the EV and which holds retransmissions (T/4 by default); never
    ASSUMED_BAD."""
    b, outs = sent(3)
    before = b.q.inflight
    result = nack(b, outs[1], reason)
    assert (result.drop, result.evi, result.credit) == (0xFF, outs[1].evi, 0)
    assert health(b.q.path, outs[1].evi) == (Health.SKIP if skip else Health.GOOD)
    assert (b.q.hold, b.q.hold_until) == ((1, b.now + 512) if hold else (0, 0))
    assert b.q.inflight == before - 344 and b.q.lost == b.q.bit(101) and b.q.retry == 0
    if hold:
        assert b.requestor.candidate(0, b.now + 511) == (0, 103)
        assert b.requestor.candidate(0, b.now + 512) == (1, 101)
        assert b.requestor.next_deadline(0, b.now) == b.now + 282, "feedback was seen: the probe timer, earlier than the hold"
    b.check()


def test_nack_that_does_not_fit_is_ignored() -> None:
    """MRC-REQ-085: only an OUTSTANDING, unacknowledged PSN with the record's entropy and timestamp; a late NACK does not kill the next
    copy."""
    b, outs = sent(4)
    b.peer.arrive(outs[0])
    b.sack(outs[0])
    first_tick = b.tick_of(outs[1])
    assert nack(b, outs[1], NackReason.TRIMMED_LASTHOP, echo_timestamp=0).drop == 0xFF
    ignored = [
        nack(b, outs[1], NackReason.TRIMMED_LASTHOP),  # LOST already
        nack(b, outs[0], NackReason.TRIMMED_LASTHOP),  # acknowledged
        nack(b, outs[2], NackReason.TRIMMED_LASTHOP, entropy=1),
        nack(b, outs[2], NackReason.TRIMMED_LASTHOP, echo_timestamp=b.tick_of(outs[2]) + 1),
        nack(b, outs[2], 0x55),
        nack(b, outs[2], NackReason.TRIMMED_LASTHOP, nack_psn=104),
    ]
    again = b.send(rtx=1)
    ignored.append(nack(b, again, NackReason.TRIMMED_LASTHOP, echo_timestamp=first_tick))
    assert {r.drop for r in ignored} == {Drop.NACK_IGNORED} and b.requestor.drops[Drop.NACK_IGNORED] == 7
    assert b.q.lost == 0
    b.peer.arrive(outs[2])
    raw(b, b.peer.sack())
    assert nack(b, outs[2], NackReason.TRIMMED_LASTHOP).drop == Drop.NACK_IGNORED, "a SACK said received"


def test_unexpected_event() -> None:
    """MRC-REQ-086, invariant 15."""
    b, outs = sent(2)
    nack(b, outs[1], NackReason.UNEXP_EVENT)
    assert b.q.lost == 0 and b.q.fault == (WcStatus.REMOTE_OPERATION, 0)
    b.settle()
    assert [c.status for c in b.completions] == [WcStatus.REMOTE_OPERATION]


def test_nacks_of_the_head_count_once_per_t() -> None:
    """MRC-REQ-093: +1 per NACK of unack_psn + 1, at most once per T; others do not count; at the limit the QP fails."""
    b, outs = sent(3, linear_cnt=1, exp_cnt=1)
    nack(b, outs[1], NackReason.TRIMMED_LASTHOP)
    assert b.q.retry == 0
    nack(b, outs[0], NackReason.TRIMMED_LASTHOP)
    assert b.q.retry == 1 and b.q.nack_block_until == b.now + 2048
    b.wait(2047)
    again = b.send(rtx=1)
    nack(b, again, NackReason.TRIMMED_LASTHOP)
    assert b.q.retry == 1
    again = b.send(rtx=1)
    b.wait(1)
    nack(b, again, NackReason.TRIMMED_LASTHOP)
    assert b.q.fault == (WcStatus.RETRY_EXCEEDED, 0)


def test_ack_completes_all_messages_up_to_it() -> None:
    """MRC-REQ-087: only the last PSN of an unfinished message that is wholly sent; unack_psn moves too; WriteIMMs are counted off."""
    b = Bench()
    for imm in (1, None, 2, None):
        b.post(600, imm)
    outs = [b.send() for _ in range(10)]
    ack = FeedbackFields(syndrome=0x1F)
    for psn in (100, 101, 110, 111, 99):
        assert b.requestor.ack(0, replace(ack, psn=psn), b.now).drop == Drop.ACK_IGNORED
    assert b.requestor.ack(0, replace(ack, psn=outs[8].psn), b.now).drop == 0xFF
    assert (b.q.msg_done, b.q.wimm_open, b.q.unack_psn) == (3, 0, 108)
    b.settle()
    assert [(c.msg, c.status) for c in b.completions] == [(0, 0), (1, 0), (2, 0)] and b.q.unretired == 1
    assert b.requestor.ack(0, replace(ack, psn=outs[5].psn), b.now).drop == Drop.ACK_IGNORED
    b.check()


@pytest.mark.parametrize(("syndrome", "status"), [
    (0x61, WcStatus.REMOTE_INVALID_REQUEST), (0x62, WcStatus.REMOTE_ACCESS), (0x63, WcStatus.REMOTE_OPERATION),
])  # fmt: skip
def test_nak(syndrome: int, status: WcStatus) -> None:
    """MRC-REQ-088: any sent PSN of an unfinished message; that message ends with the cause. Other syndromes and PSNs are ignored."""
    b = Bench()
    b.post(600)
    b.post(600)
    outs = [b.send() for _ in range(5)]
    nak = FeedbackFields(syndrome=syndrome, psn=105)
    assert b.requestor.ack(0, nak, b.now).drop == Drop.ACK_IGNORED, "PSN 105 is not sent"
    assert b.requestor.ack(0, replace(nak, psn=99), b.now).drop == Drop.ACK_IGNORED
    assert b.requestor.ack(0, replace(nak, psn=104, syndrome=0x20), b.now).drop == Drop.ACK_IGNORED
    assert b.requestor.ack(0, replace(nak, psn=outs[4].psn), b.now).drop == 0xFF
    b.settle()
    assert [c.status for c in b.completions] == [WcStatus.FLUSHED, status]


def test_ack_before_sack_settles_everything() -> None:
    """MRC-REQ-068, MRC-REQ-087, R-02: an ACK alone retires its PSNs and stops timer and probes; a SACK that it overtook finds nothing
    new."""
    b = Bench()
    b.post(1000)
    outs = b.send_all()
    for out in outs:
        b.peer.arrive(out)
    late = b.peer.sack(outs[-1], b.tick_of(outs[-1]))
    ack = b.peer.ack()
    assert ack is not None
    b.requestor.ack(0, ack, b.now)
    assert Kind.RETIRE in b.kinds()
    b.settle()
    q = b.q
    assert (q.inflight, q.timer_on, q.probe_on, q.hold, q.unretired) == (0, 0, 0, 0, 0)
    assert raw(b, late).newly == 0 and q.inflight == 0
    assert b.kinds() == [] and b.requestor.next_deadline(0) == b.now + 8192, "only the age of the match is left"
