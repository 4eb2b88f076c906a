"""Two whole endpoints over a faulty link: everything arrives exactly once, in place, whatever the fabric does (MRC-REQ-260 to 277)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.config import Sizes
from model.link import Faults, Link
from model.spec import DATA_OPCODES, MTUS, PSN_MASK, Command, Opcode, PostStatus
from model.wire import build
from model.wire_packet import Packet

from .pair import SIZES, Pair

ALL = Faults(delay=8, jitter=20, drop=0.03, dup=0.05, reorder=0.05, mark=0.1, trim=0.03, trim_last_hop=0.02, corrupt=0.02)


@pytest.mark.parametrize("mtu", range(len(MTUS)))
def test_sizes_and_alignments(mtu: int) -> None:
    """MRC-REQ-277, MRC-REQ-271, F-01, F-03, I-03, I-04: message lengths around pads and MTUs, any alignment, guards untouched; nothing is dropped."""
    pair = Pair(mtu, qp={"mtu": mtu})
    size = MTUS[mtu]
    for turn, length in enumerate((1, 2, 3, 4, 44, 45, 48, 49, 255, 256, 257, size - 1, size, size + 1, 2 * size, 3 * size)):
        pair.post(turn % 2, 0, length, align=turn % 8)
        pair.post(turn % 2, 1, length, imm=0x80000000 + turn, align=7 - turn % 8)
    pair.settle()
    assert pair.drops() == [{}, {}]
    assert sum(c.sent for side in pair.link.counts for c in side) == sum(c.delivered for side in pair.link.counts for c in side)


def test_64_kib_across_the_psn_wrap() -> None:
    """S-01, S-04, F-03: 64 KiB from PSN 0xFFFFF0 on, in order: no loss, no reorder count."""
    pair = Pair(3)
    seen = _watch(pair)
    for side in range(2):
        pair.post(side, 0, 65536)
    pair.settle()
    assert pair.drops() == [{}, {}]
    assert not any(p.rtx or p.opcode in (Opcode.PROBE, Opcode.NACK) for _, _, _, p in seen)
    assert sum(p.opcode == Opcode.ACK for _, _, _, p in seen) == 2 and pair.link.now < 20 * 16


@pytest.mark.parametrize("name", ["drop", "dup", "reorder", "mark", "trim", "trim_last_hop", "corrupt"])
def test_one_fault(name: str) -> None:
    """R-09, R-11, R-22, O-01: 20 % of one fault on every plane, both ways; invariants 16 and 18 at the end."""
    pair = Pair(5, replace(Faults(jitter=5), **{name: 0.2}))  # type: ignore[arg-type]
    for k in range(12):
        for side in range(2):
            pair.post(side, k % 2, pair.random.choice((1, 255, 257, 2000)), imm=pair.random.choice((None, k)))
    pair.settle()
    assert sum(getattr(c, {"drop": "dropped", "dup": "duplicated", "reorder": "reordered", "mark": "marked", "corrupt": "corrupted"}.get(
        name, "trimmed")) for side in pair.link.counts for c in side) > 0  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_all_faults(seed: int) -> None:
    """Invariants 16 and 18, R-04, R-16: all faults together, two QPs both ways, in bytes or packets, IPv6 or IPv4, more posts on the way."""
    print(f"seed {seed}")
    sizes = (SIZES, Sizes(qps=2, planes=4, evs=4, active_evs=3), Sizes(qps=2, planes=1, evs=8, active_evs=8, window=256))[seed % 3]
    pair = Pair(seed, ALL, sizes, frames=seed % 2 == 0, ipv4=seed // 4 % 2, start=(1 << 32) - 400 if seed % 5 == 0 else 0,
                glob={"ev_swap": seed // 2 % 2, "sack_threshold": (1024, 4096, 16384)[seed // 3 % 3]})  # fmt: skip
    for _ in range(8):
        for side in range(2):
            for qp in range(2):
                for _ in range(3):
                    imm = pair.random.choice((None, pair.random.randrange(1 << 32)))
                    pair.post(side, qp, pair.random.choice((1, 44, 255, 256, 257, 700, 3000)), imm, pair.random.randrange(8))
        pair.link.run(pair.random.randrange(300))
    pair.settle()
    assert sum(len(q) for side in pair.posted for q in side) > 40


def test_same_seed_same_run() -> None:
    """The link is deterministic from its seed: same frames at the same ticks."""
    runs = []
    for seed in (1, 1, 2):
        seen: list[tuple[int, int, int, Packet]] = []
        pair = Pair(9, ALL)
        pair.link = Link(pair.a, pair.b, seed, ALL, capture=lambda *args, seen=seen: seen.append(args))
        pair.post(0, 0, 9000)
        pair.settle()
        runs.append(seen)
    assert runs[0] == runs[1] != runs[2]


def _watch(pair: Pair) -> list[tuple[int, int, int, Packet]]:
    seen: list[tuple[int, int, int, Packet]] = []
    pair.link.capture = lambda *args: seen.append(args)
    return seen


def test_window_stall() -> None:
    """R-01, R-02, invariant 9: with all answers lost exactly 128 PSNs leave, copies included nothing beyond; then the run goes on."""
    pair = Pair(2)
    seen = _watch(pair)
    pair.link.faults = [Faults(dead_evs=frozenset(e.value for q in pair.b.requestor.qp for e in q.ev)) for _ in range(2)]
    pair.post(0, 0, 200 * 256)
    pair.link.run(3000)
    first = pair.a.requestor.qp[0].config.sq_psn
    assert {p.psn - first & PSN_MASK for _, end, _, p in seen if end == 0 and p.opcode in DATA_OPCODES} == set(range(128))
    pair.link.faults = [Faults(), Faults()]
    pair.settle()


def test_tail_repairs() -> None:
    """R-12, R-13, MRC-REQ-219, MRC-REQ-221: the last SACK and the last ACK are lost: a probe brings both again, no data is sent twice."""
    pair = Pair(2)
    seen = _watch(pair)
    pair.post(0, 0, 600)
    pair.link.faults = [Faults(dead_evs=frozenset(e.value for q in pair.b.requestor.qp for e in q.ev)) for _ in range(2)]
    pair.link.run(100)
    pair.link.faults = [Faults(), Faults()]
    pair.settle()
    data = [p for _, end, _, p in seen if end == 0 and p.opcode in DATA_OPCODES]
    assert len(data) == 3 and any(p.opcode == Opcode.PROBE for _, _, _, p in seen)


def test_dead_ev_is_left_and_comes_back() -> None:
    """MRC-REQ-232: one EV dead both ways: it becomes ASSUMED_BAD, traffic goes on; alive again, probes bring it back to GOOD."""
    pair = Pair(4, qp={"timer_exp": 4}, glob={"probe_time": 400})
    dead = pair.a.requestor.qp[0].ev[1].value
    pair.link.faults = [Faults(dead_evs=frozenset({dead})), Faults()]
    for _ in range(10):
        pair.post(0, 0, 3000)
    pair.settle()
    path = pair.a.requestor.qp[0].path
    assert path.planes[0].bad >> 1 & 1
    pair.link.faults = [Faults(), Faults()]
    pair.link.run(4000)
    assert path.planes[0].good >> 1 & 1


@pytest.mark.parametrize("planes", [(0,), (1,), (0, 1)])
def test_planes_down_and_up(planes: tuple[int, ...]) -> None:
    """R-22: a plane, or all of them, swallow everything for a while; below the retry limit nothing is lost."""
    pair = Pair(6, qp={"timer_exp": 6})
    for _ in range(6):
        for side in range(2):
            pair.post(side, 0, 4000)
    pair.link.run(10)
    for plane in planes:
        pair.link.faults[plane].down = True
    pair.link.run(3 * 512)
    for plane in planes:
        pair.link.faults[plane].down = False
    pair.post(0, 1, 1000, imm=5)
    pair.settle()


def test_denied_evs_carry_nothing() -> None:
    """MRC-REQ-231: neither data nor answers use a DENIED EV while others exist."""
    pair = Pair(6)
    for end in pair.ends:
        for index in range(2):
            assert end.command(Command.EV_STATE, index, 0, 1) == PostStatus.OK
    seen = _watch(pair)
    for side in range(2):
        pair.post(side, 0, 9000, imm=1)
    pair.settle()
    denied = {end.requestor.qp[i].ev[0].value for end in pair.ends for i in range(2)}
    assert seen and not any(p.ev in denied for _, _, _, p in seen)


def test_answers_on_what_is_left() -> None:
    """MRC-REQ-231: no ACTIVE GOOD EV on the plane: any that is not DENIED, read from the requestor's row at that moment."""
    pair = Pair(6, sizes=replace(SIZES, planes=1))
    assert pair.b.command(Command.EV_STATE, 0, 0, 1) == PostStatus.OK
    row = pair.b.requestor.qp[0].path.planes[0]
    row.good, row.bad = 0, 0b10
    seen = _watch(pair)
    pair.post(0, 0, 2000)
    pair.settle()
    assert {p.ev for _, end, _, p in seen if end == 1} == {pair.b.requestor.qp[0].ev[1].value}


def test_flush_is_a_deadline() -> None:
    """MRC-REQ-219: a packet that asks for nothing is acknowledged sack_flush_time later, by time alone."""
    pair = Pair(6)
    seen = _watch(pair)
    pair.link.faults = [Faults(down=True), Faults(down=True)]
    pair.post(0, 0, 600)
    pair.link.run(5)
    packet = next(p for _, _, _, p in seen if p.opcode in DATA_OPCODES and not p.a)
    pair.b.receive(0, packet, 100)
    assert pair.b.run(100) == [] and pair.b.next_deadline() == 147
    assert pair.b.run(146) == []
    assert [p.opcode for _, p in pair.b.run(147)] == [Opcode.SACK]
    assert pair.b.next_deadline() is None


def test_wire_rules_hold() -> None:
    """MRC-REQ-267 to 270, MRC-REQ-222, invariants 7 and 13: every frame parses; addresses and classes; SACK's PSN; copies carry rtx and the same headers."""
    pair = Pair(11, ALL, frames=True)
    seen = _watch(pair)
    for k in range(10):
        pair.post(k % 2, 0, 2000, imm=k)
    pair.settle()
    first: dict[tuple[int, int, int], Packet] = {}
    for _, end, plane, packet in seen:
        assert len(build(packet, pair.a.wire)) > 0
        assert (packet.smac & 0xFF, packet.dmac & 0xFF, packet.src_ip & 0xFF, packet.dst_ip & 0xFF) == (plane,) * 4
        if packet.opcode in DATA_OPCODES:
            assert packet.ts and packet.tx_timestamp and packet.ecn == 2
            key = (end, packet.dest_qp, packet.psn)
            if key in first:
                old = first[key]
                assert packet.rtx == 1 and packet.a == 1
                assert replace(old, rtx=1, a=1, ev=packet.ev, tx_timestamp=packet.tx_timestamp, smac=packet.smac, dmac=packet.dmac,
                               src_ip=packet.src_ip, dst_ip=packet.dst_ip, dscp=packet.dscp) == packet  # fmt: skip
            else:
                assert packet.rtx == 0
                first[key] = packet
        elif packet.opcode == Opcode.SACK:
            assert packet.psn == packet.cack_psn and packet.ecn == 0 and packet.dscp == 46
            assert packet.sack_offset > 1 or (packet.sack_offset == 1 and not packet.sack_bitmap & 1)
        elif packet.opcode == Opcode.NACK:
            assert packet.psn == packet.nack_psn
    assert sum(p.rtx for _, _, _, p in seen) > 0
