"""Responder under any arrival order: the end equals that of in-order delivery (hypothesis), and its speed."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import Sizes
from model.responder import Responder
from model.rsp_state import EmitAckOut, EmitSackOut
from model.spec import PSN_MASK, Opcode

from .rsp_bench import MTU, Bench

_KINDS = ((0, 1), (0, 3), (1, 1), (1, 2), (0, 2), (1, 4))  # WriteIMM?, packets


@st.composite
def _case(draw: st.DrawFn) -> tuple[int, list[tuple[int, dict[str, int]]], list[int], list[dict[str, int]]]:
    """Start PSN, the packets of some messages in order, a permutation with duplicates, and what the fabric did to each arrival."""
    start = draw(st.sampled_from([0, 0xFFFFF0, 0xFFFFFF, 0x7FFFFA, 1234]))
    packets: list[tuple[int, dict[str, int]]] = []
    rqmsn = 0
    for imm, count in draw(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=9)):
        for i in range(count):
            last = i == count - 1
            opcode = (Opcode.WRITE_ONLY + imm if last else Opcode.WRITE_FIRST) if i == 0 else Opcode.WRITE_LAST + imm if last else Opcode.WRITE_MIDDLE
            packets.append((opcode, {"dmalen": count * MTU, "rqmsn": rqmsn, "imm": 0x1000 + rqmsn if imm and last else 0}))
        rqmsn += imm
    order = draw(st.permutations(list(range(len(packets)))))
    extra = draw(st.lists(st.sampled_from(range(len(packets))), max_size=12))
    arrivals = list(order)
    for k in extra:
        arrivals.insert(draw(st.integers(0, len(arrivals))), k)
    flags = [{"a": draw(st.integers(0, 1)), "ce": draw(st.integers(0, 1)), "plane": draw(st.integers(0, 1))} for _ in arrivals]
    return start, packets, arrivals, flags


def _run(start: int, packets: list[tuple[int, dict[str, int]]], arrivals: list[int], flags: list[dict[str, int]]) -> tuple[Bench, dict[int, int]]:
    b = Bench(start, receives=16, sack_threshold=4096)
    written: dict[int, int] = {}
    cack = b.qp.cack_psn
    for k, flag in zip(arrivals, flags):
        b.now += 7
        out = b.take(k, packets[k][0], **packets[k][1], **flag)
        if out.write:
            assert k not in written  # invariant 6
            written[k] = out.addr
        assert (b.qp.cack_psn - cack & PSN_MASK) <= len(packets)  # invariant 7: never back
        cack = b.qp.cack_psn
        assert b.qp.ooo_count == b.qp.rcvd.bit_count()
        for answer in b.drain():
            if isinstance(answer, EmitSackOut):
                assert answer.sack_offset > 1 or (answer.sack_offset == 1 and not answer.sack_bitmap & 1)  # invariant 7
    return b, written


@settings(max_examples=120, deadline=None)
@given(_case())
def test_any_order_equals_in_order(case: tuple[int, list[tuple[int, dict[str, int]]], list[int], list[dict[str, int]]]) -> None:
    """MRC-REQ-204, MRC-REQ-206, MRC-REQ-210, MRC-REQ-250, invariants 6-8, 10: placement, counts and completions do not depend on order, duplication, marks."""
    start, packets, arrivals, flags = case
    a, a_written = _run(start, packets, arrivals, flags)
    b, b_written = _run(start, packets, list(range(len(packets))), [{}] * len(packets))
    assert a_written == b_written and len(a_written) == len(packets)
    assert a.done == b.done
    for name in ("cack_psn", "max_rcv_psn", "ooo_count", "rcvd_bytes", "done_psn", "done_msn", "next_rqmsn", "rq_head", "prev_ar", "nak"):
        assert getattr(a.qp, name) == getattr(b.qp, name), name
    assert (a.qp.rcvd, a.qp.ends, a.qp.imms) == (0, 0, 0) and not any(s.valid for s in a.qp.stash)


def test_last_ack_says_all() -> None:
    """MRC-REQ-252: whatever the order, the newest ACK after the last arrival names the last message."""
    b = Bench()
    newest = 0
    for k in (3, 1, 0, 2):
        b.take(k, Opcode.WRITE_ONLY)
        newest = max([newest, *(a.aeth_msn for a in b.drain() if isinstance(a, EmitAckOut))])
    assert newest == 4


def test_steps_are_fast() -> None:
    """The bench budget: on average well below 100 us a step even on a loaded machine (some 5 us on an idle one)."""
    b = Bench(mpr=1024)
    b.r.sizes = Sizes(window=1024)
    assert isinstance(b.r, Responder)
    steps, begin = 0, time.perf_counter()
    for block in range(20):
        for k in range(63, -1, -1):
            b.receive(block * 64 + k)
            steps += 1
        b.settle()
        steps += len(b.drain()) + 2
    assert (time.perf_counter() - begin) / steps < 100e-6
