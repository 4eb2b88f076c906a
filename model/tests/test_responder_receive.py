"""Responder: admission, PSN classes, packet checks, resources (MRC-REQ-190 to 215)."""

from __future__ import annotations

import copy

import pytest

from model.config import Region, StepError
from model.rsp_state import NOT_DROPPED
from model.spec import ANCIENT, Command, Drop, Kind, MFlag, NackReason, Opcode, QpState, Syndrome, WcStatus

from .rsp_bench import HOST, LENGTH, MTU, RKEY, START, VA, Bench


def test_admission_order() -> None:
    """MRC-REQ-190, MRC-REQ-191: the first failing check alone is counted, and nothing else changes."""
    b = Bench()
    before = copy.deepcopy(b.qp)
    fields = {"known": 0, "addr_ok": 0, "pkey_ok": 0}
    for cause in (Drop.UNKNOWN_QP, Drop.ADDRESS, Drop.PKEY):
        assert b.take(0, **fields).drop == cause
        fields[{Drop.UNKNOWN_QP: "known", Drop.ADDRESS: "addr_ok", Drop.PKEY: "pkey_ok"}[cause]] = 1
        assert b.dropped(cause) == 1
    assert b.qp == before
    assert b.take(0, **fields).drop == NOT_DROPPED


@pytest.mark.parametrize("state", [QpState.RESET, QpState.INIT])
def test_state_without_window(state: QpState) -> None:
    """MRC-REQ-191: data and probes need RTR or RTS."""
    b = Bench()
    b.control(Command.MODIFY, QpState.RESET)
    if state == QpState.INIT:
        b.control(Command.MODIFY, QpState.INIT)
    assert b.take(0, addr_ok=0).drop == Drop.QP_STATE
    assert b.take(0, Opcode.PROBE).drop == Drop.QP_STATE
    assert b.pending() == []


def test_receives_in_rtr() -> None:
    """MRC-REQ-191: a QP receives in RTR already."""
    b = Bench()
    b.control(Command.MODIFY, QpState.RESET)
    for state in (QpState.INIT, QpState.RTR):
        b.control(Command.MODIFY, state)
    assert b.take(0).drop == NOT_DROPPED


@pytest.mark.parametrize("distance, drop", [
    (-ANCIENT - 1, Drop.ANCIENT), (-ANCIENT, Drop.DUPLICATE), (-1, Drop.DUPLICATE), (0, None), (1, Drop.DUPLICATE), (2, None),
    (127, None), (128, Drop.OUT_OF_WINDOW), (1 << 22, Drop.OUT_OF_WINDOW), (-(1 << 22), Drop.ANCIENT),
])  # fmt: skip
@pytest.mark.parametrize("trimmed", [0, 1, 2])
@pytest.mark.parametrize("start", [START, 0, 0x7FFFFF])
def test_psn_classes(distance: int, drop: Drop | None, trimmed: int, start: int) -> None:
    """MRC-REQ-192 to 196, S-01: the class boundaries, the same for trimmed packets, wherever the PSN starts."""
    b = Bench(start)
    for k in (0, 1, 3):  # ePSN = 2 and 3 is recorded
        b.take(k)
    b.drain()
    before = copy.deepcopy(b.qp)
    out = b.receive(distance + 2, trimmed=trimmed)
    assert out.drop == (NOT_DROPPED if drop is None else drop)
    assert out.write == (drop is None and not trimmed)
    changed = b.qp.rcvd != before.rcvd
    assert changed == (drop is None and not trimmed)
    b.settle()
    answers = b.drain()
    if drop == Drop.ANCIENT:
        assert answers == [] and b.qp == before
    elif drop == Drop.DUPLICATE:
        assert answers[-1].answer.base_at_epsn == 1 and answers[-1].sack_offset == 1  # type: ignore[union-attr]
        assert answers[-1].sack_bitmap == 0b10  # type: ignore[union-attr]
    elif drop == Drop.OUT_OF_WINDOW:
        assert [a.answer.reason for a in answers] == [NackReason.PSN_OOR_WINDOW]  # type: ignore[union-attr]
    elif trimmed:
        assert [a.answer.reason for a in answers] == [NackReason(trimmed)]  # type: ignore[union-attr]
        assert (b.qp.rcvd_bytes, b.qp.trigger_cnt) == (before.rcvd_bytes, before.trigger_cnt)


def test_window_of_one_unit_is_128_packets() -> None:
    """MRC-REQ-195, R-01: an mpr of 128 takes exactly 128 PSNs beyond cack_psn and moves with it."""
    b = Bench()
    assert b.take(128).drop == Drop.OUT_OF_WINDOW
    assert b.take(127).drop == NOT_DROPPED
    b.take(0)
    assert b.take(128).drop == NOT_DROPPED and b.take(129).drop == Drop.OUT_OF_WINDOW


def test_out_of_window_silently() -> None:
    """MRC-REQ-195: one configuration bit turns the NACK off; it is counted all the same."""
    b = Bench(oor_silent=1)
    assert b.take(128).drop == Drop.OUT_OF_WINDOW
    assert b.pending() == [] and b.dropped(Drop.OUT_OF_WINDOW) == 1


def test_trim_nack_off_and_causes_nack_alone() -> None:
    """MRC-REQ-196: a new trimmed packet causes its NACK alone whatever A, rtx and CE say; without the capability nothing."""
    b = Bench()
    assert b.take(5, trimmed=2, a=1, rtx=1, ce=1, ts=0).drop == NOT_DROPPED
    (nack,) = b.drain()
    assert (nack.answer.reason, nack.answer.psn, nack.answer.tick) == (NackReason.TRIMMED_LASTHOP, b.psn(5), 0)  # type: ignore[union-attr]
    b.r.config[b.index].trim_nack = 0
    assert b.take(5, trimmed=1).drop == Drop.TRIM_IGNORED and b.pending() == []


def _lengths() -> list[tuple[int, int, int, int]]:
    """Opcode, DMALen, payload, 1 = sound."""
    first, middle, last, only = Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST, Opcode.WRITE_ONLY
    last_imm, only_imm = Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM
    return [
        (first, MTU + 1, MTU, 1), (first, MTU, MTU, 0), (first, MTU + 1, MTU - 4, 0), (first, 0, MTU, 0), (middle, 3 * MTU, MTU, 1),
        (middle, 3 * MTU, MTU + 4, 0), (middle, 0, MTU, 0), (last, 2 * MTU, MTU, 1), (last, MTU + 1, 1, 1), (last, MTU + 1, 4, 0),
        (last, MTU, MTU, 0), (last, 2 * MTU, 0, 0), (last, 0, 0, 0), (only, MTU, MTU, 1), (only, 1, 1, 1), (only, 45, 45, 1), (only, 0, 0, 0),
        (only, MTU + 4, MTU + 4, 0), (only, 8, 4, 0), (only, 4, 8, 0), (last_imm, 2 * MTU, MTU, 1), (last_imm, MTU, MTU, 0),
        (only_imm, 7, 7, 1), (only_imm, 0, 0, 0), (only_imm, 8, 12, 0), (last, (1 << 32) - 1, MTU - 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("opcode, dmalen, plen, sound", _lengths())
def test_lengths(opcode: int, dmalen: int, plen: int, sound: int) -> None:
    """MRC-REQ-200: lengths that disagree: NAK 0x61 with that PSN, QP to ERROR at once, nothing recorded or written."""
    b = Bench()
    imm = 4 if opcode in (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM) else 0
    udp_len = 8 + 12 + 4 + 4 + 16 + imm + plen + (-plen & 3) + 4
    out = b.receive(7, opcode, dmalen=dmalen, plen=plen, udp_len=udp_len)
    if sound:
        assert (out.drop, out.write) == (NOT_DROPPED, 1)
        return
    assert (out.drop, out.write) == (Drop.NAKED, 0) and b.qp.rcvd == 0 and b.qp.rcvd_bytes == 0
    assert b.pending() == [Kind.QP_ERROR]
    b.settle()
    (nak,) = b.drain()
    assert (nak.syndrome, nak.psn) == (Syndrome.NAK_INVALID_REQUEST, b.psn(7))  # type: ignore[union-attr]
    assert b.qp.state == QpState.ERROR


def test_pad_that_does_not_fit() -> None:
    """MRC-REQ-200: payload + pad is not a multiple of 4."""
    b = Bench()
    assert b.take(0, Opcode.WRITE_ONLY, dmalen=5, plen=5, udp_len=8 + 12 + 24 + 5 + 2 + 4).drop == Drop.NAKED


@pytest.mark.parametrize("fields, region", [
    ({"rkey": RKEY + 1}, {}), ({"rkey": RKEY + 8}, {}), ({"va": VA - 1}, {}), ({"va": VA + LENGTH - MTU + 1}, {}), ({"va": VA + LENGTH}, {}), ({}, {"write": 0}),
    ({}, {"valid": 0}), ({"va": (1 << 64) - MTU + 1}, {"va": (1 << 64) - 2 * MTU, "length": 1 << 20}),
])  # fmt: skip
def test_access_refused(fields: dict[str, int], region: dict[str, int]) -> None:
    """MRC-REQ-202, MRC-REQ-203: R_Key, rights, bounds, wrap: NAK 0x62, memory untouched, QP to ERROR."""
    b = Bench()
    b.control(Command.SET_REGION, Region(**{"rkey": RKEY, "va": VA, "length": LENGTH, "host": HOST, "write": 1, "valid": 1, **region}), 3)
    out = b.take(0, **fields)
    assert (out.drop, out.write, b.qp.nak) == (Drop.NAKED, 0, Syndrome.NAK_REMOTE_ACCESS) and b.qp.rcvd == 0


@pytest.mark.parametrize("va", [VA, VA + 3, VA + LENGTH - MTU])
def test_access_granted(va: int) -> None:
    """MRC-REQ-202, MRC-REQ-204: written at once, whatever the order, at host + (va - region's va)."""
    b = Bench()
    out = b.take(99, va=va)
    assert (out.write, out.addr) == (1, HOST + va - VA)


def test_region_that_ends_at_the_top() -> None:
    """MRC-REQ-203: a range that ends exactly at 2^64 does not wrap."""
    b = Bench()
    b.control(Command.SET_REGION, Region(rkey=9, va=(1 << 64) - MTU, length=MTU, host=HOST, write=1, valid=1), 1)
    assert b.take(0, rkey=9, va=(1 << 64) - MTU).addr == HOST


def test_check_order() -> None:
    """MRC-REQ-201: lengths, then stash, then access."""
    b = Bench()
    b.take(0, Opcode.WRITE_ONLY_IMM, rqmsn=32, rkey=0, dmalen=0)
    assert b.qp.nak == Syndrome.NAK_INVALID_REQUEST
    b = Bench()
    b.take(0, Opcode.WRITE_ONLY_IMM, rqmsn=32, rkey=0)
    assert b.qp.nak == Syndrome.NAK_INVALID_REQUEST
    b = Bench()
    b.take(0, Opcode.WRITE_ONLY_IMM, rqmsn=31, rkey=0)
    assert b.qp.nak == Syndrome.NAK_REMOTE_ACCESS


@pytest.mark.parametrize("reason", [NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE])
def test_resources_short(reason: NackReason) -> None:
    """MRC-REQ-205: NACK with the reason, nothing recorded; the packet is new again when it returns."""
    b = Bench()
    before = copy.deepcopy(b.qp)
    out = b.take(2, no_resource=reason, a=1)
    assert (out.drop, out.write, out.no_resource, b.dropped(Drop.NO_RESOURCE)) == (Drop.NO_RESOURCE, 0, reason, 1)
    (nack,) = b.drain()
    assert (nack.answer.reason, nack.answer.psn, nack.answer.tick) == (reason, b.psn(2), 3)  # type: ignore[union-attr]
    before.rev = b.qp.rev
    assert b.qp == before
    assert b.take(2).write == 1


def test_resource_choice_is_legal_only_for_new_sound_packets() -> None:
    """MRC-REQ-205: the free choice is refused for duplicates, trimmed, unsound packets, and with another reason."""
    b = Bench()
    b.take(0)
    for args in ({"k": 0}, {"k": 3, "trimmed": 1}, {"k": 3, "rkey": 0}, {"k": 300}, {"k": 3, "known": 0}):
        with pytest.raises(StepError, match="needs no resources"):
            b.receive(no_resource=NackReason.NO_BITMAP, **args)
    with pytest.raises(StepError, match="not a resource reason"):
        b.receive(3, no_resource=NackReason.TRIMMED)


def test_unknown_opcode_is_refused() -> None:
    """A SACK never comes to the responder."""
    with pytest.raises(StepError, match="not for the responder"):
        Bench().receive(0, Opcode.SACK)


def test_receive_waits_for_advance_and_error() -> None:
    """MRC-REQ-210: ADVANCE, RECV_COMPLETE and QP_ERROR of the QP come before its next RECEIVE."""
    b = Bench()
    b.receive(0, Opcode.WRITE_ONLY)
    with pytest.raises(StepError, match="before the next RECEIVE"):
        b.receive(1)
    b.r.advance(b.index, b.now)
    with pytest.raises(StepError, match="before the next RECEIVE"):
        b.receive(1)
    b.settle()
    b.receive(1, rkey=0)
    with pytest.raises(StepError, match="before the next RECEIVE"):
        b.receive(1, Opcode.PROBE)


def test_duplicate_repeats_the_ack_and_creates_nothing() -> None:
    """MRC-REQ-193, R-09, R-10: the first packet of a finished message again: SACK and the newest ACK; no second completion, bytes once."""
    b = Bench()
    b.take(0, Opcode.WRITE_ONLY_IMM, imm=5)
    b.drain()
    size = b.qp.rcvd_bytes
    out = b.take(0, Opcode.WRITE_ONLY_IMM, imm=6, rtx=1, ce=1)
    assert (out.drop, out.write) == (Drop.DUPLICATE, 0)
    ack, sack = b.drain()
    assert (ack.syndrome, ack.psn, ack.aeth_msn) == (Syndrome.ACK, b.psn(0), 1)  # type: ignore[union-attr]
    assert (sack.answer.mflag, sack.ack_psn_offset, sack.answer.soft) == (MFlag.SKIP_ONCE, 0, 0)  # type: ignore[union-attr]
    assert b.qp.rcvd_bytes == size and len(b.done) == 1 and b.qp.rq_head == 1


def test_duplicates_are_counted_by_reception() -> None:
    """MRC-REQ-193, R-11: the counter counts receptions, not answers; a duplicate above cack_psn repeats no ACK."""
    b = Bench()
    b.take(0, Opcode.WRITE_ONLY)
    b.drain()
    b.take(2)
    for plane in (0, 1, 0):
        assert b.take(2, plane=plane).drop == Drop.DUPLICATE
    assert Kind.EMIT_ACK not in b.pending() and b.dropped(Drop.DUPLICATE) == 3
    assert [a.plane for a in b.drain()] == [0, 1, 0]


def test_error_state_answers_probes_only() -> None:
    """MRC-REQ-240, MRC-REQ-241: in ERROR after a NAK each probe gets that NAK; everything else is dropped and counted. Without a NAK, all is."""
    b = Bench()
    b.take(4, rkey=0)
    assert [a.syndrome for a in b.drain()] == [Syndrome.NAK_REMOTE_ACCESS]  # type: ignore[union-attr]
    assert b.take(0).drop == Drop.QP_ERROR and b.drain() == []
    assert b.take(0, Opcode.PROBE, pkey_ok=0).drop == Drop.PKEY and b.drain() == []
    assert b.take(0, Opcode.PROBE, plane=1).drop == NOT_DROPPED
    (nak,) = b.drain()
    assert (nak.syndrome, nak.psn, nak.plane) == (Syndrome.NAK_REMOTE_ACCESS, b.psn(4), 1)  # type: ignore[union-attr]
    b = Bench()
    b.r.qp_error(b.index, b.now, WcStatus.LOCAL_QP_OPERATION)
    assert b.take(0, Opcode.PROBE).drop == Drop.QP_ERROR and b.drain() == []
