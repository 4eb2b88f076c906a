"""Requestor: commands, life cycle, posts, completions, configuration. MRC-REQ-050 to MRC-REQ-065."""

from __future__ import annotations

import pytest

from model.config import Config, EvConfig, GlobalConfig, QpConfig, Region, Sizes, StepError, WorkRequest, default_path_credit
from model.req_results import CompleteOut
from model.requestor import FeedbackFields, Requestor
from model.spec import Command, Drop, Health, Kind, PostStatus, QpState, WcStatus

from .req_bench import SIZES, Bench, bring_up

OK, BAD_STATE = PostStatus.OK, PostStatus.BAD_STATE


def state_of(requestor: Requestor, target: QpState, qp: int = 0) -> None:
    """Moves a QP from RESET to ``target``."""
    for step in (QpState.INIT, QpState.RTR, QpState.RTS)[: min(target, 3)]:
        assert requestor.control(Command.MODIFY, qp, 0, step, 0).status == OK
    if target == QpState.ERROR:
        requestor.qp_error(qp, WcStatus.LOCAL_QP_OPERATION, 0, 0)


def test_defaults_are_valid() -> None:
    """MRC-REQ-050, MRC-REQ-051: 12 us = 94 ticks, probe 3 x base_rtt, flush base_rtt/2; defaults pass their own checks."""
    glob = GlobalConfig()
    assert (glob.base_rtt, glob.reo_wnd, glob.probe_time, glob.sack_flush_time) == (94, 94, 282, 47)
    for config in (glob, QpConfig(), EvConfig(), Region(), WorkRequest()):
        config.validate(Sizes())
    assert default_path_credit(128, 8) == 32 and default_path_credit(128, 1000) == 2


@pytest.mark.parametrize(("config", "word"), [
    (QpConfig(mtu=5), "mtu"), (QpConfig(timer_exp=25), "timer_exp"), (QpConfig(exp_cnt=26), "exp_cnt"),
    (QpConfig(linear_cnt=0, exp_cnt=0), "try"), (QpConfig(lfsr_seed=0), "lfsr_seed"), (QpConfig(dest_qpn=2), "reserved"),
    (QpConfig(rsp_mpr=100), "rsp_mpr"), (QpConfig(sq_psn=0x1FFFFFF), "24 bits"), (QpConfig(cwnd=100), "cwnd"),
    (QpConfig(path_credit=0), "path_credit"), (QpConfig(peer_mac=0xFF), "lowest byte"), (QpConfig(req_mpr=0), "req_mpr"),
    (QpConfig(ipv4=1, peer_ip=1 << 32), "IPv4"), (QpConfig(ev_min_active=5), "ev_min_active"),
    (GlobalConfig(base_rtt=1 << 15), "base_rtt"), (GlobalConfig(dscp_trimmed=46), "dscp_trimmed"), (GlobalConfig(udp_port=0), "udp_port"),
    (Region(va=1 << 63, length=(1 << 63) + 1), "wrap"),
])  # fmt: skip
def test_validate_names_what_is_wrong(config: Config, word: str) -> None:
    """MRC-REQ-050, S-03, R-20: a wrong configuration is refused with what, why and what would be right."""
    with pytest.raises(ValueError, match=word):
        config.validate(Sizes())


def test_sizes_are_checked() -> None:
    """MRC-REQ-050."""
    for wrong in ({"window": 100}, {"planes": 16}, {"evs": 256}, {"mtu": 1500}, {"qpn_base": 1}, {"active_evs": 3}, {"msg_slots": 1024}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Sizes(**wrong)


def test_pack_and_unpack() -> None:
    """MRC-REQ-050: data words of a command."""
    config = QpConfig(sq_psn=0xABCDEF, mtu=4, trim_nack=0)
    assert QpConfig.unpack(config.pack()) == config
    assert config.pack().bit_length() <= 512
    requestor = Requestor(SIZES)
    state_of(requestor, QpState.INIT)
    assert requestor.control(Command.SET_QP, 0, 0, config.pack(), 0).status == OK
    assert requestor.qp[0].config == config


@pytest.mark.parametrize("state", list(QpState))
def test_commands_by_state(state: QpState) -> None:
    """MRC-REQ-052, MRC-REQ-053, MRC-REQ-054, MRC-REQ-055: which command is allowed in which state."""
    early = state in (QpState.RESET, QpState.INIT)

    def fresh() -> Requestor:
        requestor = Requestor(SIZES)
        state_of(requestor, state)
        return requestor

    assert fresh().control(Command.SET_GLOBAL, 1, 0, GlobalConfig(), 0).status == (OK if early else BAD_STATE)
    assert fresh().control(Command.SET_QP, 0, 0, QpConfig(), 0).status == (OK if state == QpState.INIT else BAD_STATE)
    assert fresh().control(Command.SET_EV, 0, 3, EvConfig(), 0).status == (OK if state == QpState.INIT else BAD_STATE)
    assert fresh().control(Command.EV_STATE, 0, 3, 1, 0).status == OK
    assert fresh().control(Command.EV_STATE, 0, 8, 1, 0).status == PostStatus.BAD_QP
    for target in range(8):
        allowed = target in (QpState.RESET, QpState.ERROR) or (target == state + 1 and target <= QpState.RTS)
        requestor = fresh()
        assert requestor.control(Command.MODIFY, 0, 0, target, 0).status == (OK if allowed else BAD_STATE)
        if not allowed or target == QpState.ERROR:
            assert requestor.qp[0].state == state
    posted = fresh().post(0, WorkRequest(length=1), 0).status
    assert posted == (OK if state in (QpState.RTS, QpState.ERROR) else BAD_STATE)
    with pytest.raises(StepError, match="no command"):
        fresh().control(Command.POST, 0, 0, 0, 0)


def test_initial_state_at_rts() -> None:
    """MRC-REQ-058, S-01."""
    q = Bench(sq_psn=0, req_mpr=128, lfsr_seed=0x1234).q
    assert (q.next_psn, q.post_psn, q.unack_psn, q.right_edge, q.path.lfsr) == (0, 0, 0xFFFFFF, 127, 0x1234)
    assert (q.inflight, q.timer_on, q.probe_on, q.path.plane_ptr) == (0, 0, 0, 0)


def test_post_numbers() -> None:
    """MRC-REQ-060, MRC-REQ-063: PSNs from the length, MSN per message, RQMSN per WriteIMM; S-01: across the wrap."""
    b = Bench(sq_psn=0xFFFFF0)
    for length, imm in ((256, None), (257, 7), (256 * 20, None), (1, 8), (1, None)):
        assert b.post(length, imm) == OK
    got = [(m.first_psn, m.last_psn, m.msn, m.rqmsn) for m in b.q.messages[:5]]
    assert got == [(0xFFFFF0, 0xFFFFF0, 0, 0), (0xFFFFF1, 0xFFFFF2, 1, 0), (0xFFFFF3, 6, 2, 1), (7, 7, 3, 1), (8, 8, 4, 2)]
    assert b.q.post_psn == 9 and b.q.msg_tail == 5
    b.q.next_msn = b.q.next_rqmsn = 0xFFFF
    b.post(1, 1)
    b.post(1, 2)
    assert [(m.msn, m.rqmsn) for m in b.q.messages[5:7]] == [(0xFFFF, 0xFFFF), (0, 0)]


def test_post_refusals_in_order() -> None:
    """MRC-REQ-064: length, state, slot; a refused post changes nothing."""
    b = Bench()
    assert b.post(0) == PostStatus.BAD_LENGTH
    for _ in range(SIZES.msg_slots):
        assert b.post(100) == OK
    before = repr(b.q)
    assert b.post(100) == PostStatus.FULL and b.post(0) == PostStatus.BAD_LENGTH
    assert repr(b.q) == before
    reset = Requestor(SIZES)
    assert reset.post(0, WorkRequest(length=0), 0).status == PostStatus.BAD_LENGTH
    assert reset.post(0, WorkRequest(length=1), 0).status == BAD_STATE


def test_completions_in_order_with_cause_and_flush() -> None:
    """MRC-REQ-059, MRC-REQ-065: done messages succeed, the failed one has the cause, the others are flushed; later posts too."""
    b = Bench()
    for _ in range(4):
        b.post(200)
    sent = b.send_all()
    b.peer.arrive(sent[0])
    ack = b.peer.ack()
    assert ack is not None
    b.requestor.ack(0, ack, b.now)
    b.requestor.ack(0, FeedbackFields(psn=sent[2].psn, syndrome=0x62), b.now)
    with pytest.raises(StepError, match="must come first"):
        b.requestor.send(0, b.now, b.room)
    with pytest.raises(StepError, match="REMOTE_ACCESS"):
        b.requestor.qp_error(0, WcStatus.RETRY_EXCEEDED, 1, b.now)
    assert b.kinds()[:2] == [Kind.QP_ERROR, Kind.COMPLETE]
    b.q.hold = b.q.want_probe = b.q.bad_probe_on = 1
    b.requestor.qp_error(0, WcStatus.REMOTE_ACCESS, 2, b.now)
    q = b.q
    assert (q.state, q.timer_on, q.probe_on, q.want_probe, q.bad_probe_on, q.hold) == (QpState.ERROR, 0, 0, 0, 0, 0)
    assert b.post(300) == OK
    b.settle()
    want = [WcStatus.SUCCESS, WcStatus.FLUSHED, WcStatus.REMOTE_ACCESS, WcStatus.FLUSHED, WcStatus.FLUSHED]
    assert [(c.msg, c.status, c.wr_id) for c in b.completions] == [(i, s, i) for i, s in enumerate(want)]
    assert b.completions[4].length == 300 and isinstance(b.completions[4], CompleteOut)
    with pytest.raises(StepError, match="not finished"):
        b.requestor.complete(0, b.now)
    assert not b.requestor.can_send(0, b.now, b.room) and b.kinds() == []


def test_host_error_and_reset_and_reuse() -> None:
    """MRC-REQ-056, MRC-REQ-057, O-08: ERROR in mid-message, RESET waits for the frames, the next life starts clean."""
    b = Bench()
    b.post(256 * 10, imm=5)
    first = b.requestor.send(0, b.now, b.room)
    b.requestor.qp[1].tx_pending = 0
    assert b.requestor.control(Command.MODIFY, 0, 0, QpState.ERROR, b.now).status == OK
    assert b.q.state == QpState.RTS, "the CONTROL step changes nothing itself"
    b.settle()
    assert [c.status for c in b.completions] == [WcStatus.LOCAL_QP_OPERATION]
    with pytest.raises(StepError, match="must wait"):
        b.requestor.control(Command.MODIFY, 0, 0, QpState.RESET, b.now)
    assert b.depart(first) == 0
    assert b.requestor.control(Command.MODIFY, 0, 0, QpState.RESET, b.now).status == OK
    q = b.q
    assert (q.out, q.lost, q.inflight, q.unretired, q.msg_tail, q.next_rqmsn, q.state) == (0, 0, 0, 0, 0, 0, QpState.RESET)
    assert all(row.active == row.good == row.full == 0 for row in q.path.planes) and all(e.value == e.credit == 0 for e in q.ev)
    bring_up(b.requestor, 0, QpConfig(mtu=0, sq_psn=7))
    b.posted = 0
    assert b.post(10, imm=9) == OK
    out = b.send()
    assert (out.psn, out.msn, out.rqmsn, out.imm) == (7, 0, 0, 9)
    b.check()


def test_other_owner_may_end_the_qp() -> None:
    """MRC-REQ-059: LOCAL_QP_OPERATION at any time, once."""
    b = Bench()
    b.post(10)
    b.requestor.qp_error(0, WcStatus.LOCAL_QP_OPERATION, 0, b.now)
    with pytest.raises(StepError, match="already"):
        b.requestor.qp_error(0, WcStatus.LOCAL_QP_OPERATION, 0, b.now)


def test_error_with_nothing_unfinished_flushes_what_follows() -> None:
    """MRC-REQ-059, MRC-REQ-064: no message is to blame, so a later post does not get the cause of an error that came before it."""
    b = Bench()
    b.requestor.qp_error(0, WcStatus.LOCAL_QP_OPERATION, 0, b.now)
    assert b.post(10) == OK and b.post(20) == OK
    b.settle()
    assert [c.status for c in b.completions] == [WcStatus.FLUSHED] * 2


def test_feedback_refused_by_state() -> None:
    """MRC-REQ-078: unknown QP, state, address, P_Key in that order; each counted under its own cause, nothing else changes."""
    b = Bench()
    b.post(10)
    out = b.send()
    b.peer.arrive(out)
    before = repr(b.q)
    sack = b.peer.sack(out, b.tick_of(out))
    r = b.requestor
    for step in (r.sack, r.nack, r.ack):
        assert step(0, sack, b.now, 0, 0, 0).drop == Drop.UNKNOWN_QP
        assert step(0, sack, b.now, 1, 0, 0).drop == Drop.ADDRESS
        assert step(0, sack, b.now, 1, 1, 0).drop == Drop.PKEY
        assert step(1, sack, b.now, 1, 0, 0).drop == Drop.QP_STATE
    assert repr(b.q) == before
    r.qp_error(0, WcStatus.LOCAL_QP_OPERATION, 0, b.now)
    assert r.sack(0, sack, b.now, 1, 0, 0).drop == Drop.QP_ERROR
    assert r.drop_counts() == {Drop.UNKNOWN_QP: 3, Drop.QP_STATE: 3, Drop.ADDRESS: 3, Drop.PKEY: 3, Drop.QP_ERROR: 1}


def test_controller_denies_and_allows() -> None:
    """MRC-REQ-054, MRC-REQ-149: in any state."""
    b = Bench()
    b.requestor.control(Command.EV_STATE, 0, 5, 1, b.now)
    assert b.q.path.planes[1].good == 0b1101
    b.requestor.control(Command.EV_STATE, 0, 5, 0, b.now)
    assert b.q.path.planes[1].good == 0b1111
    with pytest.raises(TypeError, match="QpConfig"):
        state_of(Requestor(SIZES), QpState.INIT)
        r = Requestor(SIZES)
        state_of(r, QpState.INIT)
        r.control(Command.SET_QP, 0, 0, EvConfig(health=Health.GOOD), 0)
