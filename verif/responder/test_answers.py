"""SACK triggers, the snapshot of a SACK, the bitmap base, the reverse path."""

from __future__ import annotations

import random

from hdl.params import preset
from model.spec import Drop, Kind, MFlag, Opcode
from verif.responder.bench import Bench, Stall

M24 = 0xFFFFFF
START = 0xFFFFC0


def connected(stall: Stall | None = None, rq_psn: int = START, params: object = None, **glob: int) -> Bench:
    b = Bench(stall=stall or Stall(), params=params or preset("tiny", trace=True, tick_div=4))
    b.setup(**glob)
    b.connect(0, rq_psn)
    b.run()
    return b


def sacks(b: Bench) -> list[dict]:
    return [f["ext"]["sack"] for f in b.tx if f["opcode"] == Opcode.SACK]


def data(b: Bench, n: int, opcode: Opcode = Opcode.WRITE_MIDDLE, **fields: int) -> None:
    """Packet ``n`` of QP 0; a MIDDLE has 256 bytes and ends no message."""
    size = {"plen": 256, "dmalen": 1 << 16} if opcode == Opcode.WRITE_MIDDLE else {}
    b.frame(0, opcode, START + n & M24, **(size | fields))


def test_each_trigger_alone() -> None:
    """MRC-REQ-216 to 218, 221: A, CE, rtx, threshold, duplicate, probe: one SACK each with the fields of its packet; nothing else causes any."""
    b = connected(sack_threshold=3 * 1024)
    data(b, 0)
    data(b, 1)
    b.run()
    assert sacks(b) == []
    cases = (
        ({"n": 2, "ev": 0xAA}, {"soft": 1, "psn": START + 2 & M24, "mflag": MFlag.NONE}),  # 3 x 1024 counted
        ({"n": 3, "a": 1}, {"soft": 0}), ({"n": 4, "ce": 1}, {"mflag": MFlag.SKIP_ONCE}), ({"n": 5, "rtx": 1}, {"base_at_epsn": 0}),
        ({"n": 6, "rtx": 1, "a": 1, "ce": 1}, {"mflag": MFlag.SKIP_ONCE}), ({"n": 6, "ce": 1}, {"base_at_epsn": 1, "mflag": MFlag.SKIP_ONCE}),
    )  # fmt: skip
    for count, (fields, expected) in enumerate(cases, 1):
        data(b, **fields)
        b.run()
        answer = b.bodies(Kind.EMIT_SACK)[-1]["answer"]
        assert len(sacks(b)) == count and {k: answer[k] for k in expected} == expected, fields
        psn = START + fields["n"] & M24
        expected_ev = fields.get("ev", 0xE0000000 | psn)
        assert (sacks(b)[-1]["entropy"], sacks(b)[-1]["echo_timestamp"]) == (expected_ev, 0x1000 + (psn & 0xFFF))
        assert b.records[-1]["ctx"]["trigger_cnt"] == 0
    b.frame(0, Opcode.PROBE, 0, probe_id=0x8123, ce=1, ev=0x77)
    b.run()
    last = sacks(b)[-1]
    assert (last["pr"], last["ack_psn_offset"] & 0xFFFF, last["mflag"], last["entropy"]) == (1, 0x8123, MFlag.SKIP_ONCE, 0x77)
    assert (last["spdcid"], last["dpdcid"], last["mpr"], last["cack_psn"]) == (0xC211, 0x100, 1, START + 6 & M24)


def test_flush_timer() -> None:
    """MRC-REQ-219, R-13: a tail that reaches no threshold is reported after sack_flush_time, once, with the last packet's fields."""
    b = connected(sack_flush_time=20)
    data(b, 0)
    data(b, 1, ts=0)
    b.run(quiet=20 * 4 + 100)
    received = [r["tick"] for r in b.records if r["kind"] == Kind.RECEIVE]
    flushed = [r["tick"] for r in b.records if r["kind"] == Kind.FLUSH]
    assert len(flushed) == 1 and 20 <= flushed[0] - received[0] <= 20 + 5
    assert [(s["entropy"], s["echo_timestamp"], s["mflag"]) for s in sacks(b)] == [(0xE0000000 | START + 1 & M24, 0, 0)]


def test_prev_ar() -> None:
    """MRC-REQ-220: an A packet behind a gap, and an A packet at ePSN that leaves one, cause one more SACK when the gap closes."""
    b = connected()
    data(b, 3, a=1)
    data(b, 0, a=1)
    b.run()
    assert len(sacks(b)) == 2 and b.records[-1]["ctx"]["prev_ar"] == 1
    data(b, 1)
    b.run()
    assert len(sacks(b)) == 2
    data(b, 2, ev=0x1234)
    b.run()
    assert (len(sacks(b)), sacks(b)[-1]["entropy"], sacks(b)[-1]["cack_psn"]) == (3, 0x1234, START + 3 & M24)
    assert b.records[-1]["ctx"]["prev_ar"] == 0


def reported(sack: dict) -> set[int]:
    """Distances from START of the PSNs that a SACK names."""
    base = sack["cack_psn"] + sack["sack_offset"]
    return {base + i - START & M24 for i in range(64) if sack["sack_bitmap"] >> i & 1}


def test_bitmap_names_everything_held() -> None:
    """MRC-REQ-222, 225, 226, R-04: rows on both sides of the wrap; any 4 SACKs in a row name all that is held, and only that."""
    rng = random.Random(5)
    b = connected(sack_threshold=1)
    held: set[int] = set()
    order = [n for n in range(1, 128) if rng.random() < 0.7]
    rng.shuffle(order)
    for n in order:
        data(b, n)
        held.add(n)
        b.run(quiet=30)
        assert reported(sacks(b)[-1]) <= held
    extra = [n for n in range(1, 128) if n not in held][:5]
    for n in extra[:4]:
        data(b, n, a=1)
        held.add(n)
    b.run()
    named = set().union(*(reported(s) for s in sacks(b)[-4:]))
    assert named == held and {s["sack_offset"] for s in sacks(b)} > {1}
    assert sacks(b)[-1]["ooo_count"] == len(held)


def test_reverse_path() -> None:
    """MRC-REQ-230, 231: plane of the cause, next plane up, ACTIVE GOOD before others, never DENIED, dropped and counted when there is none."""
    b = connected(params=preset("tiny", trace=True, tick_div=4, evs=4))
    b.row[0] = [{"active": 0b0110, "good": 0b1100, "denied": 0b0001}, {"active": 0, "good": 0, "denied": 0b0111}]
    data(b, 0, a=1, plane=0)
    data(b, 1, a=1, plane=1)
    b.run()
    assert [(f["plane"], f["evi"], f["ev"]) for f in b.tx] == [(0, 2, b.ev(0, 2)), (1, 7, b.ev(0, 7))]
    b.up = 0b10
    data(b, 2, a=1, plane=0)
    b.run()
    assert b.tx[-1]["plane"] == 1
    b.row[0][1]["denied"] = 0b1111
    data(b, 3, a=1, plane=0)
    b.run()
    b.up = 0
    data(b, 4, a=1, plane=1)
    b.run()
    assert len(b.tx) == 3 and b.drops == [Drop.NO_PORT] * 2
    b.up = 0b11
    data(b, 5, a=1, plane=0)
    b.run()
    assert len(b.tx) == 4 and b.tx[-1]["plane"] == 0


def test_duplicates_turn_the_reverse_path() -> None:
    """MRC-REQ-232: a duplicate moves its plane's reverse EV on, at most once per base_rtt; R-11: the counter counts receptions."""
    b = connected(params=preset("tiny", trace=True, tick_div=4, evs=4), base_rtt=60)
    data(b, 0, a=1, plane=1)
    for _ in range(3):
        data(b, 0, plane=1)
    b.run()
    assert [f["evi"] for f in b.tx] == [4, 5, 5, 5] and b.drops == [Drop.DUPLICATE] * 3
    b.run(quiet=60 * 4)
    data(b, 0, plane=1)
    data(b, 0, plane=0)
    b.run()
    assert [f["evi"] for f in b.tx[4:]] == [6, 1]


def test_no_room_blocks_neither_receive_nor_other_work() -> None:
    """MRC-REQ-230, X-07: answers wait for their plane's room; arrivals go on until the queue is full; then all leaves in order, none lost."""
    b = connected()
    b.room = 0b10
    for n in range(40):
        data(b, n, a=1, plane=0)
    b.run_until(lambda: len(b.bodies(Kind.RECEIVE)) == 15)  # a queue of 16 keeps one place for the SACK of an ADVANCE
    b.run_until(lambda: b.clock % 100 == 0)
    assert b.tx == [] and len(b.rx) == 25
    answered = len(b.status)
    b.post_recv(0, 1)
    b.run_until(lambda: len(b.status) > answered)
    b.room = 0b11
    b.run()
    assert [s["entropy"] for s in sacks(b)] == [0xE0000000 | START + n & M24 for n in range(40)]
