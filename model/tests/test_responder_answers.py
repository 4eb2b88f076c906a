"""Responder: SACK triggers, snapshot, bitmap base, absorption, reverse path (MRC-REQ-216 to 239)."""

from __future__ import annotations

import random

import pytest

from model.config import StepError
from model.rsp_state import EmitSackOut, RevRow
from model.spec import Command, Drop, Kind, MFlag, Opcode, QpState, Syndrome

from .rsp_bench import MTU, START, Bench


def _sacks(b: Bench) -> list[EmitSackOut]:
    return [a for a in b.drain() if isinstance(a, EmitSackOut)]


@pytest.mark.parametrize("fields, mflag", [({"a": 1}, 0), ({"ce": 1}, MFlag.SKIP_ONCE), ({"rtx": 1}, 0), ({"a": 1, "ce": 1, "rtx": 1}, 1)])
def test_hard_triggers(fields: dict[str, int], mflag: int) -> None:
    """MRC-REQ-216: A, CE (M = SKIP_ONCE), rtx: one SACK with the packet's own fields, however many reasons; it is never absorbed."""
    b = Bench()
    b.take(0, plane=1, **fields)
    (sack,) = _sacks(b)
    answer = sack.answer
    assert (answer.psn, answer.ev, answer.tick, answer.mflag, answer.plane) == (b.psn(0), 0xE0000, 1, mflag, 1)
    assert (answer.soft, answer.pr, answer.base_at_epsn, answer.reason) == (0, 0, 0, 0)
    assert (sack.cack_psn, sack.ack_psn_offset, sack.ooo_count, sack.mpr) == (b.psn(0), 0, 0, 1)


@pytest.mark.parametrize("threshold, every", [(1024, 1), (1025, 2), (4096, 4), (20 * 1024, 20), (0, 1)])
def test_threshold(threshold: int, every: int) -> None:
    """MRC-REQ-217, R-12, R-14: each packet counts at least 1024 bytes; a SACK when the sum reaches the threshold, then from zero again."""
    b = Bench(sack_threshold=threshold, sack_flush_time=0)
    counts = []
    for k in range(3 * every):
        b.take(k)
        counts.append(len(_sacks(b)))
    assert counts == ([0] * (every - 1) + [1]) * 3
    assert b.qp.trigger_cnt == 0


def test_threshold_counts_large_packets_in_full() -> None:
    """MRC-REQ-217: a payload above 1024 counts as it is."""
    b = Bench(sack_threshold=4096)
    b.r.config[b.index].mtu = 3
    b.take(0, plen=2048, dmalen=4096 * 9, udp_len=48 + 2048)
    assert b.qp.trigger_cnt == 2048 and _sacks(b) == []
    b.take(1, plen=2048, dmalen=4096 * 9, udp_len=48 + 2048)
    assert len(_sacks(b)) == 1


def test_every_queued_sack_clears_the_counter() -> None:
    """MRC-REQ-218: also that of a probe or a duplicate, and flush with it."""
    for event in ({"k": 5, "opcode": Opcode.PROBE}, {"k": 3}):
        b = Bench()
        b.take(3)
        assert (b.qp.trigger_cnt, b.qp.flush_on) == (1024, 1)
        b.take(**event)
        assert (b.qp.trigger_cnt, b.qp.flush_on) == (0, 0)


def test_flush() -> None:
    """MRC-REQ-219, R-13: the tail is acknowledged sack_flush_time after the first packet that waits, with the last packet's fields."""
    b = Bench()
    b.take(0, ce=0)
    first = b.now
    b.now += 40
    b.take(1, plane=1)
    assert b.r.next_deadline(b.index) == first + 47
    b.now = first + 46
    assert b.pending() == []
    with pytest.raises(StepError, match="no FLUSH"):
        b.r.flush(b.index, b.now)
    b.now += 1
    assert b.pending() == [Kind.FLUSH]
    b.r.flush(b.index, b.now)
    assert b.r.next_deadline(b.index) is None
    (sack,) = _sacks(b)
    assert (sack.answer.psn, sack.answer.ev, sack.answer.tick, sack.plane, sack.answer.soft) == (b.psn(1), 0xE0001, 2, 1, 1)
    b.now += 1000
    assert b.pending() == []


def test_flush_across_the_wrap_of_time_and_off() -> None:
    """MRC-REQ-219: deadlines are signed differences of 32-bit ticks; 0 turns flush off."""
    b = Bench()
    b.now = (1 << 32) - 10
    b.take(0)
    assert b.pending() == [] and b.qp.flush_at == 37
    b.now = 36
    assert b.pending() == []
    b.now = 37
    assert b.pending() == [Kind.FLUSH]
    b = Bench(sack_flush_time=0)
    b.take(0)
    assert b.r.next_deadline(b.index) is None


def test_prev_ar() -> None:
    """MRC-REQ-220: an A packet that leaves a gap makes the step that closes it queue one more SACK, once, soft."""
    b = Bench()
    b.take(2, a=1)
    assert b.qp.prev_ar == 1 and len(_sacks(b)) == 1
    b.take(0)
    assert _sacks(b) == [] and b.qp.prev_ar == 1
    b.take(1)
    (sack,) = _sacks(b)
    assert (sack.answer.soft, sack.answer.psn, sack.cack_psn, b.qp.prev_ar) == (1, b.psn(1), b.psn(2), 0)
    b.take(4)
    b.take(3)
    assert _sacks(b) == []


def test_prev_ar_of_the_packet_at_epsn() -> None:
    """MRC-REQ-220: A at ePSN with a gap further on sets it in ADVANCE; without a gap it does not; without A never."""
    b = Bench()
    b.take(0, a=1)
    assert b.qp.prev_ar == 0
    b.take(3)
    b.take(1, a=1)
    assert b.qp.prev_ar == 1
    b = Bench()
    b.take(3)
    b.take(0)
    assert b.qp.prev_ar == 0


def test_probe() -> None:
    """MRC-REQ-221: pr = 1, the id echoed, base at ePSN, M by CE; the newest ACK repeated if there is one; nothing recorded."""
    b = Bench()
    b.take(0)
    b.take(5, Opcode.PROBE, probe_id=0x8123, ce=1, tx_timestamp=77, ev=9, plane=1)
    (sack,) = b.drain()
    assert isinstance(sack, EmitSackOut)
    assert (sack.answer.pr, sack.ack_psn_offset, sack.answer.mflag, sack.answer.tick, sack.answer.ev) == (1, 0x8123, 1, 77, 9)
    assert (sack.sack_offset, sack.cack_psn, sack.plane) == (1, b.psn(0), 1)
    b.take(1, Opcode.WRITE_ONLY)
    b.drain()
    b.take(0, Opcode.PROBE, plane=1)
    ack, sack = b.drain()
    assert (ack.syndrome, ack.psn, ack.plane) == (Syndrome.ACK, b.psn(1), 1)  # type: ignore[union-attr]


def test_snapshot_is_of_the_emission() -> None:
    """MRC-REQ-222: cause fields of the packet, the rest of the moment it leaves; ack_psn_offset may be negative."""
    b = Bench()
    b.take(1, a=1)
    b.take(0)
    b.take(2)
    (sack, prev_ar) = _sacks(b)
    assert (sack.cack_psn, sack.ack_psn_offset, sack.ooo_count, sack.answer.psn) == (b.psn(2), 0xFFFF, 0, b.psn(1))
    assert prev_ar.answer.psn == b.psn(0)


def test_rcvd_bytes_rounds_up() -> None:
    """MRC-REQ-223: exact sum of UDP length + 40 of new packets, reported in units of 256 rounded up, modulo 2^24."""
    b = Bench()
    size = b.packet(0).udp_len + 40
    b.take(0, a=1)
    b.take(0, a=1)
    b.take(1, a=1, trimmed=1)
    sacks = _sacks(b)
    assert b.qp.rcvd_bytes == size and {s.rcvd_bytes for s in sacks} == {-(-size // 256)}
    b.qp.rcvd_bytes = (1 << 32) - 1
    b.take(1, a=1)
    assert _sacks(b)[0].rcvd_bytes == -(-(size - 1) // 256)


def test_emit_waits_for_advance() -> None:
    """MRC-REQ-210, invariant 7: cack_psn + 1 has not arrived on the wire."""
    b = Bench()
    b.receive(0, Opcode.WRITE_ONLY, a=1)
    for _ in range(2):
        for emit in (b.sack, b.nack, b.ack):
            with pytest.raises(StepError, match="before any emit"):
                emit()
        if b.qp.rcvd:
            b.r.advance(b.index, b.now)
    b.settle()
    assert not b.sack().sack_bitmap & 1


def test_advance_goes_row_by_row() -> None:
    """MRC-REQ-211: one ADVANCE ends at a multiple of 64 PSNs at most."""
    b = Bench(start=60)
    for k in range(1, 100):
        b.receive(k)
    b.receive(0)
    assert [b.r.advance(b.index, b.now).cack_psn for _ in range(3)] == [63, 127, 159]
    with pytest.raises(StepError, match="no ADVANCE"):
        b.r.advance(b.index, b.now)
    assert b.qp.ooo_count == 0


def _held(b: Bench, sack: EmitSackOut) -> set[int]:
    return {(sack.cack_psn + sack.sack_offset + i - b.start) & 0xFFFFFF for i in range(64) if sack.sack_bitmap >> i & 1}


@pytest.mark.parametrize("mpr", [128, 1024])
@pytest.mark.parametrize("seed", range(4))
def test_everything_held_is_reported_again(mpr: int, seed: int) -> None:
    """MRC-REQ-225, MRC-REQ-226, invariant 7: any 2 x ceil(mpr / 64) SACKs in a row name all that is held, so that lost ones hide nothing."""
    print(f"seed {seed}")
    rng = random.Random(f"held {mpr} {seed}")
    b = Bench(mpr=mpr)
    held = set(rng.sample(range(1, mpr), rng.randrange(1, mpr - 1)))
    for k in rng.sample(sorted(held), len(held)):
        b.take(k)
    b.drain()
    for _ in range(rng.randrange(100)):  # lost ones
        b.receive(min(held), a=1) if rng.random() < 0.2 else b.r._queue_last_sack(b.index, b.qp)
        b.drain()
    seen: set[int] = set()
    for _ in range(2 * -(-mpr // 64)):
        b.r._queue_last_sack(b.index, b.qp)
        (sack,) = _sacks(b)
        named = _held(b, sack)
        assert named <= held
        seen |= named
    assert seen == held


def test_bases_alternate() -> None:
    """MRC-REQ-225: sweep from ePSN and the newest 64 take turns; a probe or duplicate starts at ePSN and moves neither."""
    b = Bench(mpr=1024)
    b.take(299)
    bases = []
    for step in range(14):
        if step == 4:
            b.take(299)  # duplicate
            assert b.sack().sack_offset == 1
        b.r._queue_last_sack(b.index, b.qp)
        bases.append(b.sack().sack_offset - 1)
    newest = 299 - 63
    assert bases == [0, newest, 64, newest, 128, newest, 192, newest, 0, newest, 64, newest, 128, newest]


def test_sweep_stops_before_the_newest() -> None:
    """MRC-REQ-225: a sweep that has reached R starts again at ePSN: the newest 64 have their own turn."""
    b = Bench(mpr=1024)
    b.take(63 + 128)
    bases = []
    for _ in range(6):
        b.r._queue_last_sack(b.index, b.qp)
        bases.append(b.sack().sack_offset - 1)
    assert bases == [0, 128, 64, 128, 0, 128]


def test_base_with_little_held() -> None:
    """MRC-REQ-225: while all held fits into 64 PSNs the base is ePSN, the sweep rests."""
    b = Bench()
    b.take(63)
    for _ in range(3):
        b.r._queue_last_sack(b.index, b.qp)
        assert b.sack().sack_offset == 1
    assert b.qp.sweep == START and b.qp.alt == 1


def test_soft_sacks_may_be_absorbed() -> None:
    """MRC-REQ-224: only soft ones, only by a later SACK of the QP, which keeps its own fields."""
    b = Bench(sack_threshold=1024)
    b.receive(1)  # soft
    b.receive(2, a=1)
    b.receive(3)  # soft
    b.receive(4, trimmed=1)  # NACK
    soft, hard, soft2, nack = list(b.qp.answers)
    with pytest.raises(StepError, match="must leave before"):
        b.r.emit_nack(b.index, 0, 3, b.row(0), nack)
    with pytest.raises(StepError, match="must leave before"):
        b.r.emit_sack(b.index, 0, 3, b.row(0), soft2)
    assert b.r.emit_sack(b.index, 0, 3, b.row(0), hard).answer is hard and list(b.qp.answers) == [soft2, nack]
    with pytest.raises(StepError, match="must leave before"):
        b.r.emit_sack(b.index, 0, 3, b.row(0), soft)
    with pytest.raises(StepError, match="vanished"):
        b.r.emit_nack(b.index, 0, 3, b.row(0), nack)
    b.receive(5, a=1)
    assert b.r.emit_nack(b.index, 0, 3, b.row(0), nack).answer is nack
    assert [a.psn for a in b.qp.answers] == [b.psn(5)]


def test_reverse_path() -> None:
    """MRC-REQ-230, MRC-REQ-231: the causing plane, else the next one up; the first ACTIVE GOOD EV from the index, else any not DENIED; else dropped."""
    b = Bench()
    rows = [RevRow(0, 0b10, 0b11, 0, [10, 11]), RevRow(0, 0b01, 0b11, 0, [10, 11]), RevRow(0, 0b11, 0b11, 0, [10, 11]),
            RevRow(0, 0b10, 0b01, 0b01, [10, 11]), RevRow(0, 0, 0b11, 0, [10, 11])]  # fmt: skip
    evs = []
    for k, row in enumerate(rows):
        b.take(k, a=1)
        out = b.r.emit_sack(b.index, b.now, 3, row)
        evs.append(out.ev)
        assert (out.plane, out.good, out.active, out.denied) == (0, row.good, row.active, row.denied)
    assert evs == [11, 10, 10, 11, 11] and b.qp.rev == [1, 0]
    b.take(5, a=1)
    state = (b.qp.alt, b.qp.sweep, b.qp.right_edge, b.qp.rev)
    out = b.r.emit_sack(b.index, b.now, 3, RevRow(0, 0, 3, 3, [10, 11]))
    assert (out.dropped, b.dropped(Drop.NO_PORT)) == (1, 1) and not b.qp.answers
    assert (b.qp.alt, b.qp.sweep, b.qp.right_edge, b.qp.rev) == state


def test_port_down() -> None:
    """MRC-REQ-230: plane down: the next one that is up; none: dropped and counted."""
    b = Bench()
    b.r.port(b.now, 0b10)
    b.take(0, a=1, plane=0)
    assert b.sack().plane == 1
    b.r.port(b.now, 0b01)
    b.take(1, a=1, plane=1)
    assert b.sack().plane == 0
    b.r.port(b.now, 0)
    b.take(2, Opcode.WRITE_ONLY, a=1)
    assert [a.dropped for a in b.drain()] == [1, 1] and b.dropped(Drop.NO_PORT) == 2


def test_emit_needs_room_and_the_right_row() -> None:
    """MRC-REQ-230: an answer waits for its own plane; a record that says otherwise is illegal and changes nothing."""
    b = Bench()
    b.take(0, a=1)
    with pytest.raises(StepError, match="no room"):
        b.r.emit_sack(b.index, b.now, 0b10, b.row(0))
    with pytest.raises(StepError, match="plane 0"):
        b.r.emit_sack(b.index, b.now, 3, b.row(1))
    assert b.r.emit_sack(b.index, b.now, 0b01, b.row(0)).cack_psn == b.psn(0)


def test_duplicates_turn_the_reverse_ev() -> None:
    """MRC-REQ-232: a duplicate data packet from a plane moves that plane's reverse EV on, at most once per base_rtt, other planes not."""
    b = Bench()
    b.take(0, a=1)
    assert b.sack().ev_in_plane == 0
    evs = []
    for step in (0, 93, 1, 200):
        b.now += step
        b.take(0)
        evs.append(b.sack().ev_in_plane)
    assert evs == [1, 1, 0, 1] and b.qp.rev[1] == 0
    b.take(0, plane=1)
    assert b.qp.rev[1] == 1
    b.take(5, Opcode.PROBE)
    assert b.qp.rev == [1, 1]


def test_right_edge_is_what_was_announced() -> None:
    """MRC-REQ-195: it moves with an emitted SACK only."""
    b = Bench()
    b.take(0, a=1)
    assert b.qp.right_edge == b.psn(127)
    b.sack()
    assert b.qp.right_edge == b.psn(128)


def test_reset_waits_for_answers() -> None:
    """MRC-REQ-245: RESET comes when nothing of the QP waits to leave; then its state is zero."""
    b = Bench()
    b.take(0, Opcode.WRITE_ONLY, a=1, plen=MTU)
    for _ in range(2):
        with pytest.raises(StepError, match="waits"):
            b.control(Command.MODIFY, QpState.RESET)
        b.ack() if b.qp.ack_due else b.sack()
    b.control(Command.MODIFY, QpState.RESET)
    assert b.qp == b.r._fresh()
