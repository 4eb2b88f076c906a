"""Responder: completions in order, WriteIMM, transport ACK, errors and the life of a QP (MRC-REQ-240 to 259)."""

from __future__ import annotations

import pytest

from model.config import Region, StepError
from model.spec import Command, Drop, Kind, Opcode, PostStatus, QpState, Syndrome, WcStatus

from .rsp_bench import Bench

_IMM, _LAST_IMM, _ONLY, _LAST = Opcode.WRITE_ONLY_IMM, Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY, Opcode.WRITE_LAST


def test_last_packet_first() -> None:
    """MRC-REQ-250, O-01: a WriteIMM of 8 packets whose last arrives first completes only after all 8."""
    b = Bench()
    b.take(7, _LAST_IMM, imm=0x80000001, dmalen=7 * 256 + 256)
    for k in (3, 1, 2, 6, 5, 4):
        b.take(k)
        assert b.done == []
    b.take(0, Opcode.WRITE_FIRST)
    (done,) = b.done
    assert (done.psn, done.imm_valid, done.status, done.wr_id, done.length, done.imm) == (b.psn(7), 1, 0, 100, 2048, 0x80000001)


def test_two_interleaved_complete_in_order() -> None:
    """MRC-REQ-250, MRC-REQ-251, O-01..O-03: in RQMSN order; each takes one receive; immediates 32 bits and lengths unchanged."""
    b = Bench()
    b.take(3, _LAST_IMM, rqmsn=1, imm=2, dmalen=2 * 256)
    b.take(1, _LAST_IMM, rqmsn=0, imm=1, dmalen=2 * 256 - 1, plen=255)
    b.take(2, Opcode.WRITE_FIRST, rqmsn=1)
    assert b.done == []
    b.take(0, Opcode.WRITE_FIRST)
    assert [(d.imm, d.wr_id, d.length) for d in b.done] == [(1, 100, 511), (2, 101, 512)]
    assert (b.qp.next_rqmsn, b.qp.rq_head, b.qp.done_msn) == (2, 2, 2)


def test_ack_names_the_newest_end() -> None:
    """MRC-REQ-252: ends that cack_psn passes together cause one ACK: newest end, messages completed, syndrome 0x1F."""
    b = Bench()
    b.take(3, _ONLY)
    b.take(1, _IMM, rqmsn=0)
    b.take(2, Opcode.WRITE_FIRST)
    assert Kind.EMIT_ACK not in b.pending()
    b.take(0, _ONLY, plane=1)
    acks = [a for a in b.drain() if hasattr(a, "syndrome")]
    assert [(a.syndrome, a.psn, a.aeth_msn, a.plane) for a in acks] == [(Syndrome.ACK, b.psn(3), 3, 1)]  # type: ignore[union-attr]
    b.take(4, Opcode.WRITE_FIRST)
    assert Kind.EMIT_ACK not in b.pending()


def test_msn_wraps() -> None:
    """MRC-REQ-252, S-01: messages are counted modulo 2^24, RQMSN modulo 2^16."""
    b = Bench()
    b.qp.done_msn, b.qp.next_rqmsn = (1 << 24) - 1, (1 << 16) - 1
    b.take(0, _IMM, rqmsn=(1 << 16) - 1)
    b.take(1, _IMM, rqmsn=0)
    assert (b.qp.done_msn, b.qp.next_rqmsn, [d.status for d in b.done]) == (1, 1, [0, 0])


@pytest.mark.parametrize("rqmsn, sound", [(31, True), (32, False), (0xFFFF, False)])
def test_stash_limit(rqmsn: int, sound: bool) -> None:
    """MRC-REQ-253: a WriteIMM max_wimm or more ahead of the next one: NAK 0x61, QP to ERROR."""
    b = Bench()
    b.take(40, _IMM, rqmsn=rqmsn)
    assert (b.qp.nak == 0) == sound
    assert b.qp.state == (QpState.RTS if sound else QpState.ERROR)


def test_rqmsn_of_plain_writes_is_ignored() -> None:
    """MRC-REQ-253: only packets with ImmDt are held against the limit."""
    b = Bench()
    b.take(0, _ONLY, rqmsn=0x4000)
    assert b.qp.done_msn == 1


def test_wrong_rqmsn_at_its_turn() -> None:
    """MRC-REQ-254: the WriteIMM that completes next is not the one stashed under its number: NAK 0x61 of its PSN."""
    b = Bench()
    b.take(0, _IMM, rqmsn=1)
    assert (b.done[0].status, b.qp.nak, b.qp.nak_psn) == (WcStatus.REMOTE_INVALID_REQUEST, Syndrome.NAK_INVALID_REQUEST, b.psn(0))
    assert b.qp.state == QpState.ERROR and b.qp.rq_head != 0  # the entries were flushed, none consumed
    assert [d.status for d in b.done[1:]] == [WcStatus.FLUSHED] * 4


def test_swapped_rqmsn() -> None:
    """MRC-REQ-254: the numbers of two WriteIMMs are swapped: the entry of the turn names another PSN."""
    b = Bench()
    b.take(1, _IMM, rqmsn=0)
    b.take(0, _IMM, rqmsn=1)
    assert (b.done[0].status, b.qp.nak_psn) == (WcStatus.REMOTE_INVALID_REQUEST, b.psn(0))


def test_receive_queue_empty() -> None:
    """MRC-REQ-255: no receive entry at release: NAK 0x63 of the WriteIMM's last PSN; earlier messages stay completed; QP to ERROR."""
    b = Bench(receives=1)
    b.take(0, _IMM, rqmsn=0)
    b.take(1, _ONLY)
    b.take(2, _IMM, rqmsn=1)
    assert [d.status for d in b.done] == [0, 0, WcStatus.REMOTE_OPERATION]
    assert (b.done[2].wr_id, b.done[2].length, b.done[2].imm) == (0, 0, 0)
    assert (b.qp.state, b.qp.done_msn, b.qp.done_psn) == (QpState.ERROR, 2, b.psn(1))
    (nak,) = b.drain()
    assert (nak.syndrome, nak.psn, nak.aeth_msn) == (Syndrome.NAK_REMOTE_OPERATION, b.psn(2), 2)  # type: ignore[union-attr]


def test_qp_error_drops_answers_but_the_nak() -> None:
    """MRC-REQ-242, O-08: pending SACKs, NACKs and the ACK vanish, the NAK leaves, stash empty, receives flushed once in order."""
    b = Bench()
    b.take(0, _ONLY, a=1)
    b.take(5, _IMM, rqmsn=0)
    b.take(6, trimmed=1)
    b.receive(7, rkey=0)
    assert b.pending() == [Kind.QP_ERROR]
    with pytest.raises(StepError, match="QP_ERROR comes before"):
        b.ack()
    b.r.qp_error(b.index, b.now, WcStatus.LOCAL_QP_OPERATION)
    assert not any(s.valid for s in b.qp.stash) and b.pending() == [Kind.RECV_COMPLETE, Kind.EMIT_ACK]
    b.settle()
    assert [(d.status, d.wr_id, d.imm_valid, d.psn) for d in b.done[1:]] == [(WcStatus.FLUSHED, 100 + i, 0, 0) for i in range(4)]
    assert len(b.drain()) == 1 and b.pending() == []


@pytest.mark.parametrize("due", [False, True])
def test_host_error_drops_all(due: bool) -> None:
    """MRC-REQ-242: without a NAK nothing leaves, no ADVANCE or completion follows, no timer is armed."""
    b = Bench(receives=0)
    b.receive(0, _ONLY, a=1)
    if not due:
        b.r.advance(b.index, b.now)
    b.r.qp_error(b.index, b.now, WcStatus.LOCAL_QP_OPERATION)
    assert b.pending() == [] and b.r.next_deadline(b.index) is None
    for step in (b.r.advance, b.r.recv_complete):
        with pytest.raises(StepError):
            step(b.index, b.now)


def test_write_error() -> None:
    """MRC-REQ-243: host memory refused a payload: NAK 0x63 of a PSN that the sender still holds, QP to ERROR; an earlier NAK is kept."""
    b = Bench()
    b.take(0)
    b.r.write_error(b.index, b.now)
    b.settle()
    (nak,) = b.drain()
    assert (nak.syndrome, nak.psn, b.qp.state) == (Syndrome.NAK_REMOTE_OPERATION, b.psn(0), QpState.ERROR)  # type: ignore[union-attr]
    b = Bench()
    b.receive(0, _ONLY)  # the write of ePSN itself fails, before its ADVANCE
    b.r.write_error(b.index, b.now)
    b.settle()
    assert [a.psn for a in b.drain()] == [b.psn(0)]  # type: ignore[union-attr]
    b = Bench()
    b.take(2)  # above a gap: the gap's PSN is what the sender holds for certain
    b.r.write_error(b.index, b.now)
    b.settle()
    assert [a.psn for a in b.drain()] == [b.psn(0)]  # type: ignore[union-attr]
    b = Bench()
    b.receive(3, rkey=0)
    b.r.write_error(b.index, b.now)
    assert (b.qp.nak, b.qp.nak_psn) == (Syndrome.NAK_REMOTE_ACCESS, b.psn(3))


def test_error_of_the_host() -> None:
    """MRC-REQ-244, MRC-REQ-246: MODIFY to ERROR asks for a QP_ERROR step from any state; none in ERROR; other causes are refused."""
    b = Bench()
    b.take(1, rkey=0)
    b.drain()
    b.control(Command.MODIFY, QpState.ERROR)
    assert b.pending() == []
    with pytest.raises(StepError, match="in ERROR already"):
        b.r.write_error(b.index, b.now)
    b.control(Command.MODIFY, QpState.RESET)
    b.control(Command.MODIFY, QpState.ERROR)
    assert b.pending() == [Kind.QP_ERROR] and b.qp.state == QpState.RESET
    with pytest.raises(StepError, match="cause"):
        b.r.qp_error(b.index, b.now, WcStatus.RETRY_EXCEEDED)
    b.settle()
    assert b.qp.state == QpState.ERROR


def test_life_cycle() -> None:
    """MRC-REQ-246: RESET -> INIT -> RTR -> RTS, any -> ERROR, any -> RESET; everything else BAD_STATE and without effect."""
    allowed = {(0, 1), (1, 2), (2, 3)} | {(s, t) for s in range(5) for t in (0, 4)}
    for source in range(5):
        for target in range(5):
            b = Bench()
            b.qp.state = source
            assert b.control(Command.MODIFY, target) == (PostStatus.OK if (source, target) in allowed else PostStatus.BAD_STATE)
            if (source, target) not in allowed:
                assert b.qp.state == source


def test_used_again_after_error() -> None:
    """MRC-REQ-245, MRC-REQ-247, O-08: RESET forgets everything; the next life starts clean at its own PSN, with receives posted in INIT."""
    b = Bench()
    b.take(3, _IMM, rqmsn=0)
    b.take(9, rkey=0)
    b.drain()
    b.control(Command.MODIFY, QpState.RESET)
    assert b.r.post_recv(b.index, 0, 1).status == PostStatus.BAD_STATE
    b.control(Command.MODIFY, QpState.INIT)
    b.r.post_recv(b.index, 0, 55)
    for state in (QpState.RTR, QpState.RTS):
        b.control(Command.MODIFY, state)
    b.done.clear()
    b.take(0, _IMM, rqmsn=0, imm=3)
    assert [(d.wr_id, d.imm, d.status) for d in b.done] == [(55, 3, 0)]
    assert b.qp.cack_psn == b.psn(0) and b.qp.rcvd == 0


def test_post_recv() -> None:
    """MRC-REQ-248: FULL beyond the ring, a place again after a completion; taken and flushed in ERROR."""
    b = Bench(receives=16)
    assert b.r.post_recv(b.index, 0, 7).status == PostStatus.FULL
    b.take(0, _IMM)
    assert b.r.post_recv(b.index, 0, 7).status == PostStatus.OK
    assert b.r.post_recv(b.index, 0, 8).status == PostStatus.FULL
    b.r.qp_error(b.index, 0, WcStatus.LOCAL_QP_OPERATION)
    b.settle()
    assert [d.wr_id for d in b.done[1:]] == [*range(101, 116), 7]
    assert b.r.post_recv(b.index, 0, 9).status == PostStatus.OK and b.pending() == [Kind.RECV_COMPLETE]


def test_configuration_states() -> None:
    """MRC-REQ-247: SET_GLOBAL needs every QP in RESET or INIT, SET_QP needs INIT; wrong arguments are refused at once."""
    b = Bench()
    assert b.control(Command.SET_GLOBAL, b.r.glob) == PostStatus.BAD_STATE
    assert b.control(Command.SET_QP, b.r.config[1]) == PostStatus.BAD_STATE
    b.control(Command.MODIFY, QpState.RESET)
    assert b.control(Command.SET_GLOBAL, b.r.glob) == PostStatus.OK
    assert b.control(Command.SET_QP, b.r.config[1]) == PostStatus.BAD_STATE
    b.control(Command.MODIFY, QpState.INIT)
    with pytest.raises(TypeError):
        b.control(Command.SET_QP, Region())
    with pytest.raises(StepError, match="no command"):
        b.control(Command.POST, 0)
    assert b.control(Command.SET_REGION, Region(), 8) == PostStatus.BAD_QP
    assert b.r.drops == [0] * len(Drop)
    b.control(Command.SET_REGION, Region(rkey=5, va=1 << 40, valid=1).pack(), 7)
    assert (b.r.region[7].rkey, b.r.region[7].va, b.r.region[7].valid) == (5, 1 << 40, 1)
