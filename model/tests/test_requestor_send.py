"""Requestor: SEND and DEPART. MRC-REQ-061, 062, 066, 067, 070 to 077, 089, and the windows of failure mode R-01."""

from __future__ import annotations

import pytest

from model.config import EvConfig, GlobalConfig, StepError
from model.req_results import SendOut
from model.requestor import FeedbackFields
from model.spec import Drop, Kind, NackReason, Opcode, WcStatus

from .req_bench import EV_BASE, Bench


@pytest.mark.parametrize("mtu", range(5))
@pytest.mark.parametrize("imm", [None, 0x80000001])
def test_segmentation(mtu: int, imm: int | None) -> None:
    """MRC-REQ-060, MRC-REQ-061, F-01, O-03: opcodes, VA, length, sizes and immediate of 1, 2, 3 and 17 MTUs, one byte less and more."""
    size = 256 << mtu
    for length in (1, 45, size - 1, size, size + 1, 3 * size, 17 * size - 2):
        b = Bench(mtu=mtu)
        b.post(length, imm)
        sent = b.send_all()
        count = -(-length // size)
        assert len(sent) == count and b.q.msg_send == 1 and b.q.send_pkt == 0
        assert sum(out.plen for out in sent) == length
        for k, out in enumerate(sent):
            last = k == count - 1
            base = (Opcode.WRITE_ONLY if k == 0 else Opcode.WRITE_LAST) if last else (Opcode.WRITE_MIDDLE if k else Opcode.WRITE_FIRST)
            assert out.opcode == base + (1 if last and imm is not None else 0)
            assert (out.va, out.laddr, out.psn) == (0x2000_0000 + k * size, 0x10_0000 + k * size, 100 + k)
            assert (out.dmalen, out.rkey, out.imm) == (length, 0xAB, imm if last and imm is not None else 0)
            assert b.q.records[out.psn % 128].end == last
        pad = -length % 4
        each = 8 + 12 + 4 + 4 + 16 + 4 + 40
        assert b.q.inflight == count * each + length + pad + (4 if imm is not None else 0)
        assert b.q.sent_total == b.q.inflight


def test_window_stalls_at_exactly_mpr() -> None:
    """MRC-REQ-072, R-01: 128 packets leave with ACKs withheld, then a clean stall; a SACK opens exactly what it says; the largest edge
    stays."""
    b = Bench(sq_psn=0xFFFFF0, req_mpr=128)
    b.post(1 << 20)
    sent = b.send_all()
    assert len(sent) == 128 and sent[-1].psn == (0xFFFFF0 + 127) & 0xFFFFFF and sent[-1].a == 1
    assert b.kinds() == []
    for out in sent[:10]:
        b.peer.arrive(out)
    b.sack(sent[9])
    assert len(b.send_all()) == 10
    b.peer.mpr = 0
    b.sack(sent[9])
    assert b.q.right_edge == (0xFFFFF0 + 9 + 128) & 0xFFFFFF
    b.check()


def test_smaller_peer_window_than_our_ring() -> None:
    """MRC-REQ-072, R-01: the peer's 1 (128 packets) counts, not our ring of 256; a right edge is never taken back."""
    from model.config import Sizes

    b = Bench(Sizes(qps=2, planes=2, evs=4, active_evs=4, window=256), req_mpr=256)
    b.post(1 << 20)
    first = b.send()
    b.peer.arrive(first)
    b.sack(first)
    assert b.q.right_edge == 100 - 1 + 256, "the configured edge was larger"
    assert len(b.send_all()) == 255
    other = Bench(Sizes(qps=2, planes=2, evs=4, active_evs=4, window=256), req_mpr=128)
    other.post(1 << 20)
    assert len(other.send_all()) == 128


def test_ring_limits_when_the_oldest_is_stuck() -> None:
    """MRC-REQ-073, R-02: SACKed PSNs free credit and bytes, but next_psn stays within W of the oldest unretired PSN."""
    b = Bench(req_mpr=1024)
    b.peer.mpr = 8
    b.post(1 << 20)
    sent = b.send_all()
    assert len(sent) == 128
    for out in sent[1:]:
        b.peer.arrive(out)
    for base in (1, 65):
        b.sack(sent[70], base=100 + base)
    assert b.q.unretired == 1 and b.kinds() == []
    b.peer.arrive(sent[0])
    b.sack(sent[0])
    assert len(b.send_all()) == 128
    b.check()


def test_ring_waits_for_retire() -> None:
    """MRC-REQ-073: an acknowledged PSN holds its place in the ring until its RETIRE step."""
    b = Bench(req_mpr=1024)
    b.peer.mpr = 8
    b.post(1 << 20)
    sent = b.send_all()
    for out in sent:
        b.peer.arrive(out)
    b.sack(sent[-1], settle=False)
    assert not b.requestor.can_send(0, b.now, b.room)
    b.requestor.retire(0, sent[1].psn, b.now)
    assert not b.requestor.can_send(0, b.now, b.room), "a later place does not help"
    b.requestor.retire(0, sent[0].psn, b.now)
    assert len(b.send_all()) == 2


def test_cwnd_rules() -> None:
    """MRC-REQ-071: inflight + MTU <= cwnd, or inflight < cwnd by switch; A is set on the packet that closes it."""
    per = 88 + 256
    b = Bench(cwnd=3 * per)
    b.post(1 << 16)
    sent = b.send_all()
    assert len(sent) == 3 and [o.a for o in sent] == [0, 0, 1]
    below = Bench(glob=GlobalConfig(cwnd_rule_below=1), cwnd=3 * per)
    below.post(1 << 16)
    assert len(below.send_all()) == 3
    below = Bench(glob=GlobalConfig(cwnd_rule_below=1), cwnd=3 * per + 1)
    below.post(1 << 16)
    assert len(below.send_all()) == 4
    tight = Bench(cwnd=3 * per - 1 - 88)
    tight.post(1 << 16)
    assert len(tight.send_all()) == 2


def test_wimm_limit() -> None:
    """MRC-REQ-074: the first packet of a WriteIMM waits while peer_max_wimm are open; plain writes before it do not; A marks the last."""
    b = Bench(peer_max_wimm=2)
    for imm in (1, 2, None, 3, None):
        b.post(10, imm)
    sent = b.send_all()
    assert [o.msn for o in sent] == [0, 1, 2] and [o.a for o in sent] == [0, 0, 1] and b.q.wimm_open == 2
    b.requestor.ack(0, FeedbackFields(psn=sent[0].psn, syndrome=0x1F), b.now)
    assert b.q.wimm_open == 1
    assert [o.msn for o in b.send_all()] == [3, 4]


def test_a_bit() -> None:
    """MRC-REQ-089: set when data runs out; a free choice before; missing where it must be set is an error."""
    b = Bench()
    b.post(512)
    assert b.send(a=1).a == 1
    with pytest.raises(StepError, match="A bit"):
        b.send(a=0)


def test_record_tick_and_departure() -> None:
    """MRC-REQ-062, MRC-REQ-076: tick 0 becomes 1; the departure overwrites the record only of the same copy."""
    b = Bench()
    b.now = 0x5_0000
    b.post(512)
    out = b.requestor.send(0, b.now, b.room)
    assert out.send_tick == 1 and b.q.tx_pending == 1
    b.now += 7
    assert b.depart(out, tick=8) == 1 and b.tick_of(out) == 8 and b.q.tx_pending == 0
    with pytest.raises(StepError, match="nothing is on its way"):
        b.depart(out)
    second = b.requestor.send(0, b.now, b.room)
    assert b.depart(second, dropped=1) == 0 and b.tick_of(second) == second.send_tick
    b.q.tx_pending = 3
    assert b.depart(second, send_tick=second.send_tick + 1) == 0
    assert b.depart(second, evi=(second.evi + 1) % 8) == 0
    b.peer.arrive(out)
    b.peer.arrive(second)
    b.sack(second)
    assert b.depart(second) == 0, "retired: not OUTSTANDING any more"


def test_read_error_ends_the_qp() -> None:
    """MRC-REQ-077."""
    b = Bench()
    b.post(512)
    out = b.requestor.send(0, b.now, b.room)
    b.depart(out, read_error=1)
    b.settle()
    assert [c.status for c in b.completions] == [WcStatus.LOCAL_MEMORY]


def lose(b: Bench, out: SendOut, reason: int = NackReason.TRIMMED_LASTHOP) -> None:
    """Makes a PSN LOST by a NACK."""
    fields = FeedbackFields(nack_psn=out.psn, nack_reason=reason, entropy=out.ev, echo_timestamp=b.tick_of(out))
    assert b.requestor.nack(0, fields, b.now).drop == 0xFF


def test_retransmission_fields_order_and_fresh_ev() -> None:
    """MRC-REQ-070, MRC-REQ-075, R-18, invariant 13: oldest first, before new data, same headers, rtx and A set, another EV, no credit
    needed."""
    b = Bench(path_credit=1, mtu=1)
    b.post(512 * 3 + 100, imm=0xCAFE)
    b.post(512 * 20)
    sent = b.send_all()
    assert len(sent) == 8, "one credit on each of 8 EVs"
    for index in (5, 3, 1):
        lose(b, sent[index])
    assert b.q.lost.bit_count() == 3
    with pytest.raises(StepError, match="is due"):
        b.send(rtx=0)
    with pytest.raises(StepError, match="is due"):
        b.send(rtx=1, psn=sent[3].psn)
    for index in (1, 3, 5):
        again = b.send(rtx=1)
        old = sent[index]
        assert again.psn == old.psn and again.rtx == 1 and again.a == 1 and again.evi != old.evi
        for name in ("opcode", "va", "laddr", "plen", "dmalen", "rkey", "msn", "rqmsn", "imm"):
            assert getattr(again, name) == getattr(old, name), name
        b.check()
    assert b.q.next_psn == 108 and b.q.sent_total == sum(512 + 88 for _ in range(3)) + 100 + 92 + 4 * 600


def test_waiting_retransmission_blocks_new_data() -> None:
    """MRC-REQ-075: a retransmission whose path must wait is not overtaken by new data; one that is held or lacks cwnd lets it pass."""
    evs = [EvConfig(EV_BASE + i, 1, 0) for i in range(8)]
    b = Bench(evs=evs)
    b.post(1 << 14)
    out = b.send()
    lose(b, out)
    assert b.requestor.candidate(0, b.now) == (1, out.psn)
    assert b.requestor.try_send(0, b.now, 0) is None
    lose_second = b.send()
    assert lose_second.rtx == 1
    lose(b, lose_second, NackReason.NO_RESOURCE)
    assert b.q.hold and b.requestor.candidate(0, b.now) == (0, out.psn + 1)
    new = b.send(rtx=0)
    assert new.psn == out.psn + 1


def test_port_down_leaves_selection() -> None:
    """MRC-REQ-155: EVs of a plane that is down are not used; outstanding packets stay; back with the port."""
    b = Bench()
    b.post(1 << 14)
    b.requestor.port(0b10, b.now)
    assert {b.send().plane for _ in range(6)} == {1}
    b.requestor.port(0b00, b.now)
    assert not b.requestor.can_send(0, b.now, b.room)
    with pytest.raises(StepError, match="must wait"):
        b.send()
    b.requestor.port(0b11, b.now)
    assert {b.send().plane for _ in range(2)} == {0, 1}
    with pytest.raises(StepError, match="planes"):
        b.requestor.port(4, b.now)


def test_credit_runs_out_and_returns() -> None:
    """MRC-REQ-144, MRC-REQ-145: new data stops at path_credit on every EV; an acknowledged PSN gives it back."""
    b = Bench(path_credit=2)
    b.post(1 << 16)
    sent = b.send_all()
    assert len(sent) == 16 and b.requestor.candidate(0, b.now) is not None
    b.peer.arrive(sent[0])
    b.sack(sent[0])
    again = b.send_all()
    assert [o.evi for o in again] == [sent[0].evi] and again[0].credit == 2
    b.check()


def test_send_refused_when_nothing_to_send() -> None:
    """MRC-REQ-075."""
    b = Bench()
    with pytest.raises(StepError, match="neither new data"):
        b.send()
    assert b.requestor.try_send(0, b.now, b.room) is None
    with pytest.raises(StepError, match="RTS is needed"):
        b.requestor.send(1, b.now, b.room)
    assert b.kinds() == [] and Kind.SEND not in b.kinds() and not b.requestor.drops[Drop.NACK_IGNORED]
