"""Requestor against the ideal responder over a bad network: random events, the invariants of facts 12 after every round.

Covers MRC-REQ-055 to MRC-REQ-099 and MRC-REQ-130 to MRC-REQ-156 together; failure modes R-01, R-04, R-09, R-16, R-21, R-22, S-01, S-04.
Hypothesis prints the
seed of a failing case.
"""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import EvConfig, GlobalConfig, Sizes
from model.req_results import ProbeOut, SendOut
from model.requestor import FeedbackFields
from model.spec import Health, Kind, MFlag, NackReason, QpState, WcStatus

from .req_bench import EV_BASE, Bench, Peer, data_size

DATA, SACK, NACK, ACK, DEPART = range(5)
Frame = tuple[SendOut | ProbeOut, int]  # with the timestamp that it carries


class Net:
    """Bench, peer and a network that loses, delays, duplicates, marks and trims. One round is ``STEP`` ticks."""

    STEP = 5

    def __init__(self, seed: int, loss: float, feedback_loss: float, start: int, **config: int) -> None:
        self.rng = random.Random(seed)
        self.loss, self.feedback_loss = loss, feedback_loss
        sizes = Sizes(qps=2, planes=2, evs=4, active_evs=3, window=128)
        evs = [EvConfig(EV_BASE + i, int(i % 4 < 3), Health.GOOD) for i in range(8)]
        self.b = Bench(sizes, evs=evs, glob=GlobalConfig(reo_wnd=94), **({"cwnd": 40_000, "sq_psn": start, "exp_cnt": 25} | config))
        self.heap: list[tuple[int, int, int, Frame | FeedbackFields | SendOut | ProbeOut]] = []
        self.count = 0
        self.first: dict[int, SendOut] = {}  # new packet of each PSN (messages here are short enough for PSNs to be unique)
        self.reported = 0  # arrivals that a processed SACK's rcvd_bytes includes
        self.snapshots: dict[int, int] = {}  # id of a SACK -> arrivals at its snapshot
        self.residue = 0  # 0..255 bytes: rounding at the moment when everything was ACKED last
        self.posted = 0
        self.dead: set[int] = set()

    def put(self, delay: int, kind: int, what: Frame | FeedbackFields | SendOut | ProbeOut) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.b.now + delay, self.count, kind, what))

    def delay(self) -> int:
        return self.rng.randint(20, 60) if self.rng.random() < 0.95 else self.rng.randint(60, 400)

    def feedback(self, kind: int, fields: FeedbackFields | None) -> None:
        if fields is not None and self.rng.random() >= self.feedback_loss:
            if kind == SACK:
                self.snapshots[id(fields)] = len(self.b.peer.arrivals)
            self.put(self.delay(), kind, fields)
            if self.rng.random() < 0.02:
                self.put(self.delay(), kind, fields)

    def transmit(self, out: SendOut) -> None:
        """A SEND's frame: departs a little later with its own timestamp, then meets its fate."""
        self.put(self.rng.randint(0, 4), DEPART, out)

    def depart(self, out: SendOut | ProbeOut) -> None:
        tick = self.b.now & 0xFFFF or 1
        dropped = int(self.rng.random() < 0.01)
        psn = out.psn if isinstance(out, SendOut) else 0
        self.b.requestor.depart(0, int(isinstance(out, ProbeOut)), psn, out.evi, out.send_tick, tick, dropped, 0, self.b.now)
        copies = 0 if dropped or out.evi in self.dead or self.rng.random() < self.loss else 1 + (self.rng.random() < 0.02)
        for _ in range(copies):
            self.put(self.delay(), DATA, (out, tick))

    def data(self, out: SendOut, tick: int) -> None:
        peer, rng = self.b.peer, self.rng
        fate = rng.random()
        known = ((out.psn - peer.cack) & 0xFFFFFF) - 1 >= 1 << 22 or out.psn in peer.above
        if not known and fate < 0.04:
            reason = rng.choice((NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP, NackReason.NO_RESOURCE))
            self.feedback(NACK, FeedbackFields(nack_psn=out.psn, nack_reason=reason, entropy=out.ev, echo_timestamp=tick))
            return
        before = peer.done
        new = peer.arrive(out)
        marked = rng.random() < 0.1
        if not new or marked or out.a or rng.random() < 0.3:
            base = None if rng.random() < 0.5 else peer.cack + 1 + 64 * rng.randint(0, 1)
            self.feedback(SACK, peer.sack(out, tick, mflag=MFlag.SKIP_ONCE if marked else MFlag.NONE, base=base))
        if peer.done != before or not new:
            self.feedback(ACK, peer.ack())

    def round(self) -> None:
        """Lets STEP ticks pass: network, background steps, probes, sends, checks."""
        b = self.b
        b.now += self.STEP
        while self.heap and self.heap[0][0] <= b.now:
            _, _, kind, what = heapq.heappop(self.heap)
            if kind == DEPART:
                assert isinstance(what, SendOut | ProbeOut)
                self.depart(what)
            elif isinstance(what, tuple):
                out, tick = what
                if isinstance(out, SendOut):
                    self.data(out, tick)
                else:
                    self.feedback(SACK, b.peer.sack(pr=1, probe_id=out.id, entropy=out.ev, echo_timestamp=tick))
                    self.feedback(ACK, b.peer.ack())
            else:
                assert isinstance(what, FeedbackFields)
                if kind == SACK:
                    if b.requestor.sack(0, what, b.now).drop == 0xFF:
                        self.reported = max(self.reported, self.snapshots[id(what)])
                elif kind == NACK:
                    b.requestor.nack(0, what, b.now)
                else:
                    b.requestor.ack(0, what, b.now)
                if b.q.fault is None and self.rng.random() < 0.5:
                    self.settle()
        self.settle()
        for due in b.requestor.pending(0, b.now, b.room):
            if due.kind == Kind.PROBE and b.requestor.probe_possible(0, due.arg, b.now, b.room):
                probe = b.requestor.probe(0, due.arg, b.now, b.room)
                if probe.send_tick:
                    self.put(self.rng.randint(0, 4), DEPART, probe)
        for _ in range(2):
            self.send()
        self.check()

    def settle(self) -> None:
        busy = bool(self.b.q.unretired)
        self.b.settle()
        if busy and not self.b.q.unretired:
            self.reported = len(self.b.peer.arrivals)
            self.residue = -self.b.peer.total % 256

    def send(self) -> None:
        """One SEND with the checks on the state that it reads (invariants 1, 9, 12, 13)."""
        b, q = self.b, self.b.q
        room = self.rng.randint(1, 3)
        ups = [(p, row.active & row.good) for p, row in enumerate(q.path.planes) if b.requestor.up >> p & 1]
        goods = {p * 4 + i for p, bits in ups for i in range(4) if bits >> i & 1}
        skips = sum(row.skip.bit_count() for row in q.path.planes)
        credits = [e.credit for e in q.ev]
        evis = [r.evi for r in q.records]
        acked = q.acked_bits()
        out = b.requestor.try_send(0, b.now, room)
        if out is None:
            return
        assert room >> out.plane & 1 and b.requestor.up >> out.plane & 1
        if out.rtx:
            assert not acked & q.bit(out.psn), "12: resent though acknowledged"
            old = self.first[out.psn]
            for name in ("va", "dmalen", "msn", "rqmsn", "imm", "opcode"):
                assert getattr(out, name) == getattr(old, name), f"13: {name}"
            assert out.a == 1
            goods.discard(evis[out.psn % 128])
        else:
            assert credits[out.evi] < q.config.path_credit
            self.first[out.psn] = out
        assert out.evi in goods or not goods, "1"
        assert 0 <= skips - sum(row.skip.bit_count() for row in q.path.planes) <= 1, "3"
        self.transmit(out)

    def check(self) -> None:
        """Invariants of the state, and the bytes in flight from what really happened (12)."""
        b, q = self.b, self.b.q
        b.check()
        assert [row.active.bit_count() for row in q.path.planes] == [3, 3], "4"
        assert sum((row.active & (row.good | row.skip)).bit_count() for row in q.path.planes) >= q.config.ev_min_active, "5"
        if q.state == QpState.RTS and not q.retire_bits():
            lost = sum(q.records[p].size for p in range(128) if q.lost >> p & 1)
            reported = sum(size for _, size in b.peer.arrivals[: self.reported])
            exact = sum(map(data_size, self.first.values())) - reported - lost
            # rcvd_bytes is rounded up; what was rounded up when everything was ACKED last is not counted twice.
            assert q.inflight == exact - -reported % 256 + self.residue, "12: bytes in flight"

    def run(self, messages: int, sizes: tuple[int, ...], rounds: int = 40_000) -> None:
        """Posts and runs until everything is completed and the network is empty."""
        b = self.b
        lengths = [self.rng.choice(sizes) for _ in range(messages)]
        for _ in range(rounds):
            while self.posted < messages and self.rng.random() < 0.3:
                imm = self.posted if self.rng.random() < 0.5 else None
                if b.post(lengths[self.posted], imm) != 0:
                    break
                self.posted += 1
            self.round()
            if self.posted == messages and b.q.idle and not self.heap:
                break
        self.finish(lengths)

    def finish(self, lengths: list[int]) -> None:
        """16 and 18: every message completed once, in order; nothing is left."""
        b, q = self.b, self.b.q
        assert [(c.wr_id, c.length, c.status) for c in b.completions] == [(i, n, WcStatus.SUCCESS) for i, n in enumerate(lengths)]
        assert (q.inflight, q.unretired, q.out, q.lost, q.sacked, q.tx_pending, q.timer_on, q.probe_on, q.hold) == (0,) * 9
        assert all(e.credit == 0 for e in q.ev) and q.wimm_open == 0 and q.next_psn == q.post_psn
        assert not {d.kind for d in b.requestor.pending(0, b.now)} - {Kind.EV_AGE, Kind.PROBE}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 30), st.sampled_from([0.0, 0.01, 0.1, 0.3]), st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0, 100, 0xFFFFF0, 0xFFFFFF, 0x7FFFC0]),
)  # fmt: skip
def test_everything_arrives_once(seed: int, loss: float, feedback_loss: float, start: int) -> None:
    """Invariants 1, 3-5, 9, 12, 13, 16-18 under loss, reordering, duplicates, marks, trims, resource NACKs and lost feedback."""
    Net(seed, loss, feedback_loss, start, path_credit=16).run(12, (1, 255, 256, 257, 1000, 256 * 20))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 30))
def test_full_window_with_stuck_heads(seed: int) -> None:
    """R-01, R-02, R-18: cwnd wide open, so that the ring and the right edge are what stops; many short messages, so that ACKs overtake
    SACKs."""
    Net(seed, 0.15, 0.3, 0xFFFF80, cwnd=1 << 22, path_credit=64).run(60, (256, 512, 256 * 30), 60_000)


def test_dead_ev_and_dead_plane() -> None:
    """One EV dead for good, then one plane down and back: everything arrives, the dead EV is found out."""
    net = Net(5, 0.0, 0.0, 100, path_credit=8)
    net.dead = {1}
    b = net.b
    for index in range(16):
        b.post(256 * 6, index)
    net.posted = 16
    for turn in range(6000):
        if turn == 100:
            b.requestor.port(0b01, b.now)
        if turn == 400:
            b.requestor.port(0b11, b.now)
        net.round()
        if b.q.idle and not net.heap:
            break
    net.finish([256 * 6] * 16)
    row = b.q.path.planes[0]
    assert row.bad & ~row.active & 0b0010, "found out and demoted"


def test_all_paths_dead_and_back() -> None:
    """Nothing gets through for a while; the exponential timer goes on, probes bring the EVs back, everything arrives."""
    net = Net(6, 0.0, 0.0, 100, path_credit=8)
    b = net.b
    for index in range(4):
        b.post(256 * 6, index)
    net.posted = 4
    net.dead = set(range(8))
    for _ in range(4000):
        net.round()
    assert b.q.retry > 2 and not b.completions
    net.dead = set()
    for _ in range(60_000):
        net.round()
        if b.q.idle and not net.heap:
            break
    net.finish([256 * 6] * 4)


@pytest.mark.parametrize("start", [0, 0xFFFFF0])
def test_no_loss_no_retransmission(start: int) -> None:
    """R-21, S-04: without faults nothing is resent, judged, timed out or ignored, and no EV leaves GOOD."""
    b = Bench(sq_psn=start)
    net: list[tuple[int, SendOut]] = []
    peer: Peer = b.peer
    for index in range(10):
        b.post(256 * 8, index)
    for _ in range(400):
        b.wait(3)
        while net and net[0][0] <= b.now:
            out = net.pop(0)[1]
            peer.arrive(out)
            b.sack(out)
            ack = peer.ack()
            if ack is not None and peer.done == out.psn:
                b.requestor.ack(0, ack, b.now)
                b.settle()
        out_or_none = b.requestor.try_send(0, b.now, b.room)
        if out_or_none is not None:
            assert out_or_none.rtx == 0
            b.depart(out_or_none)
            net.append((b.now + 50, out_or_none))
        b.check()
    assert len(b.completions) == 10 and not b.requestor.drop_counts()
    assert all(row.good == 15 for row in b.q.path.planes)
