"""A small network closed around NSCC: feedback as a controller would cause it, to hold the fixed-point version against the float one.

One sender, one bottleneck whose free rate changes, several paths of unequal length. It is a source of plausible events, not a model of a
fabric: packets travel in chunks, a chunk is marked, trimmed or lost as a whole. Time in ticks of 128 ns (floats), sizes in bytes.

Both implementations get the same events; in even sequences the float one's window closes the loop, in odd ones the fixed one's.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from . import nscc_fixed, nscc_float
from .congestion import EVENT_BOUND, NEAR_ZERO_NS, STEP_BOUND_BYTES, Event, Loss, Parameters, Sack, TrimNack
from .serial import diff
from .spec import MTUS, RCVD_UNIT, TICK_NS

Fate = Literal["ack", "trim", "loss"]
OVERHEAD = 88  # UDP length + 40 less the payload: UDP, BTH, METH, TSETH, RETH, ICRC and the 40 of the rule
CHUNK_PACKETS = (1, 2, 4, 4, 8)
STEP_EVERY = 5
"""The distance of one step from the same state is taken at every fifth event."""


def float_state(s: nscc_fixed.State, now: int) -> nscc_float.State:
    """The float context equal to a fixed-point one at tick ``now`` (unwrapped)."""
    units = nscc_fixed.units_of(now)

    def ns(stamp: int) -> float:
        return float(now * TICK_NS - diff(units, stamp, nscc_fixed.TIME_BITS) * nscc_fixed.UNIT_NS)

    return nscc_float.State(
        cwnd=float(s.cwnd), base=float(s.base * nscc_fixed.UNIT_NS), inc=float(s.inc), fi_count=float(s.fi_count), fast=bool(s.fast),
        avg=s.avg * nscc_fixed.UNIT_NS / (1 << nscc_fixed.AVG_FRACTION), received=float(s.received), achieved=float(s.achieved),
        ignored=float(s.ignored), to_ignore=float(s.to_ignore), qa_end=ns(s.qa_end) if s.qa_armed else None,
        trigger_qa=bool(s.trigger_qa), last_adj=ns(s.last_adj), last_dec=ns(s.last_dec), saved=float(s.saved) if s.saved_valid else None,
    )  # fmt: skip


def step_float(s: nscc_float.State, c: nscc_float.Constants, ev: Event) -> nscc_float.State:
    """The float step of any event."""
    if isinstance(ev, Sack):
        return nscc_float.on_sack(s, c, ev)
    return nscc_float.on_trim_nack(s, c, ev) if isinstance(ev, TrimNack) else nscc_float.on_loss(s, c, ev)


def step_fixed(s: nscc_fixed.State, c: nscc_fixed.Constants, ev: Event) -> nscc_fixed.State:
    """The fixed-point step of any event."""
    if isinstance(ev, Sack):
        return nscc_fixed.on_sack(s, c, ev)
    return nscc_fixed.on_trim_nack(s, c, ev) if isinstance(ev, TrimNack) else nscc_fixed.on_loss(s, c, ev)


def step_excess(s: nscc_fixed.State, p: tuple[nscc_fixed.Constants, nscc_float.Constants], now: int, ev: Event) -> float:
    """How far one step from the same state is from its bound: distance of the two changes of cwnd / allowed distance (1 = at the bound)."""
    fixed = step_fixed(s, p[0], ev).cwnd - s.cwnd
    real = step_float(float_state(s, now), p[1], ev).cwnd - s.cwnd
    return abs(fixed - real) / max(EVENT_BOUND * abs(real), STEP_BOUND_BYTES)


def random_parameters(rng: random.Random, storm: bool) -> Parameters:
    """100 to 800 Gb/s, base_rtt 8 to 20 us; in a storm from 4 us on, any MTU, and trimming may be off."""
    mtu = rng.choice(MTUS if storm else MTUS[-2:])
    return Parameters(rng.choice((100, 200, 400, 800)), 32 * rng.randint(125 if storm else 250, 625), mtu, not storm or rng.random() < 0.7)


@dataclass
class Network:
    """Bottleneck and paths. ``share``: free part of the link rate; ``floor``: empty round trip as part of base_rtt."""

    rng: random.Random
    p: Parameters
    storm: bool
    share: float = 1.0
    floor: float = 0.9
    marking: bool = True
    loss: float = 0.0
    jitter: float = 0.05
    free_at: float = 0.0  # tick at which the queue is empty
    change_in: int = 0  # feedback until the next change of conditions
    busy: bool = True  # the application has data
    penalty: int = 0

    def weather(self) -> None:
        """Draws new conditions now and then: every 150 chunks in the mean."""
        self.change_in -= 1
        if self.change_in > 0:
            return
        rng = self.rng
        self.change_in = int(rng.expovariate(1 / 150))
        self.share = rng.choice((1.0, 1.0, 0.5, 10 ** rng.uniform(-2, 0)))
        self.marking = rng.random() < 0.75
        self.jitter = rng.choice((0.0, 0.05, 0.3))
        self.busy = rng.random() < 0.9
        if self.storm:
            self.loss = rng.choice((0.0, 0.0, 0.001, 0.02))
            self.penalty = rng.randint(1, 127) if rng.random() < 0.05 else 0
        if rng.random() < 0.2:
            self.floor = rng.uniform(0.6, 1.1)

    def send(self, now: float, size: int) -> tuple[float, Fate, bool]:
        """A chunk of ``size`` bytes leaves: tick at which its feedback is back, what became of it, marked."""
        rng, p = self.rng, self.p
        rtt = p.base_rtt_ns / TICK_NS
        backlog = max(self.free_at - now, 0.0)
        filling = backlog / rtt
        back = rtt * self.floor * (1 + self.jitter * rng.random())
        if rng.random() < self.loss or filling > (1.0 if p.trimming else 2.5):
            if p.trimming and not (self.storm and rng.random() < 0.05):
                return now + back, "trim", False
            return now + back + rtt * 2, "loss", False
        self.free_at = now + backlog + size / (p.rate_gbps * 16 * self.share)
        marked = self.marking and rng.random() < (filling - 0.2) / 0.6
        return self.free_at + back, "ack", marked


@dataclass
class Result:
    """What one sequence showed. A *distance* is that of the two windows after one event."""

    parameters: Parameters
    events: int = 0
    worst: float = 0.0  # largest distance / cwnd
    worst_of_max: float = 0.0  # largest distance / max_wnd
    beyond: int = 0  # events whose distance is more than EVENT_BOUND of cwnd
    total: float = 0.0
    worst_step: float = 0.0  # largest distance of one step from the same state, as a part of its bound
    ties: int = 0
    leaps: int = 0
    wrong: list[str] = field(default_factory=list)  # decisions that differ and are no ties
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def mean(self) -> float:
        """Mean distance / cwnd."""
        return self.total / max(self.events, 1)


class Loop:
    """Sender, network and both controllers; :meth:`run` plays a number of events.

    ``storm`` False: queue, marks, trims, changes of rate and path, a trimming fabric, MTU 2048 or 4096. True: besides them losses, receiver
    penalties, fabrics without trimming, every MTU.
    """

    def __init__(self, seed: int, storm: bool = False) -> None:
        self.rng = random.Random(seed)
        self.p = random_parameters(self.rng, storm)
        self.constants = nscc_fixed.Constants(self.p), nscc_float.Constants(self.p)
        # Near the wrap of echoed timestamps, of 32-bit ticks or of the 28 bits of them that NSCC sees, or anywhere.
        near = self.rng.choice((1 << 16, 1 << 28, 1 << 32, self.rng.randint(1 << 16, 1 << 32)))
        self.now = float(near - self.rng.randint(1, 60_000))
        self.real = nscc_float.initial(self.constants[1])
        self.fixed = nscc_fixed.initial(self.constants[0], int(self.now))
        self.fixed_drives = bool(seed & 1)
        self.net = Network(self.rng, self.p, storm, free_at=self.now)
        self.waiting: list[tuple[float, int, Fate, int, int, bool]] = []  # back at, number, fate, sent, packets, marked
        self.numbers = 0
        self.inflight = 0
        self.rcvd = 0
        self.seen = 0
        self.restore = False

    def run(self, events: int, settle: bool = True) -> Result:
        """Plays ``events`` events and compares after each.

        The algorithm magnifies distances at two places, whatever the arithmetic. A *tie*: an operand of a threshold lies between the two
        versions' values, so that one acts at this event and the other at the next. A *leap*: an adjustment adds more than twice cwnd (a
        window cut down to some MTUs, and a large SACK of earlier data); as inc / cwnd falls when cwnd grows, it multiplies a distance; it
        counts when it leaves one beyond EVENT_BOUND. Both are counted, and with ``settle`` the float version goes on from the fixed-point
        state. Other decisions must be equal.
        """
        result = Result(self.p)
        source = self._events()
        for number in range(events):
            ev = next(source)
            if number % STEP_EVERY == 0:
                result.worst_step = max(result.worst_step, step_excess(self.fixed, self.constants, int(self.now), ev))
            before, real_before = self.fixed, self.real
            self.fixed = step_fixed(before, self.constants[0], ev)
            self.real = step_float(real_before, self.constants[1], ev)
            self._count(result.kinds, before, ev)
            if settle and (self._decided_differently(before, real_before, ev, result) or self._leapt(before, result)):
                self.real = float_state(self.fixed, int(self.now))
                continue
            distance = abs(self.fixed.cwnd - self.real.cwnd)
            relative = distance / self.real.cwnd
            result.worst = max(result.worst, relative)
            result.worst_of_max = max(result.worst_of_max, distance / self.p.max_wnd)
            result.beyond += relative > EVENT_BOUND
            result.total += relative
            result.events += 1
        return result

    def _leapt(self, before: nscc_fixed.State, result: Result) -> bool:
        grown = self.fixed.cwnd > 3 * before.cwnd and self.fixed.saved_valid == before.saved_valid
        leap = grown and abs(self.fixed.cwnd - self.real.cwnd) > EVENT_BOUND * self.real.cwnd
        result.leaps += leap
        return leap

    def _decided_differently(self, before: nscc_fixed.State, real_before: nscc_float.State, ev: Event, result: Result) -> bool:
        after, real = self.fixed, self.real
        fast = bool(after.fast) != real.fast
        decrease = (after.last_dec != before.last_dec) != (real.last_dec != real_before.last_dec)
        adapt = after.achieved != min(real.achieved, (1 << 24) - 1) or bool(after.trigger_qa) != real.trigger_qa
        if not (fast or decrease or adapt):
            return False
        averages = sorted((after.avg * nscc_fixed.UNIT_NS / (1 << nscc_fixed.AVG_FRACTION), real.avg))
        windows = sorted((float(before.cwnd), real_before.cwnd))
        # Without a sample the average stands for the delay, which meets every threshold.
        limits = (NEAR_ZERO_NS, self.p.target, self.p.qa_threshold)
        tie = any(averages[0] <= limit <= averages[1] for limit in limits) or (fast and windows[0] <= after.fi_count <= windows[1])
        if tie:
            result.ties += 1
        else:
            result.wrong.append(f"{ev}: fixed {before} -> {after}, float {real_before} -> {real}")
        return True

    def _count(self, kinds: Counter[str], before: nscc_fixed.State, ev: Event) -> None:
        after = self.fixed
        kinds[type(ev).__name__] += 1
        kinds["decrease"] += after.last_dec != before.last_dec
        kinds["fast"] += after.fast
        kinds["quick adapt"] += after.ignored == 0 and before.ignored > 0
        if isinstance(ev, Sack):
            kinds["marked"] += ev.marked
            kinds["penalty"] += ev.penalty > 0

    def _window(self) -> float:
        return self.fixed.cwnd if self.fixed_drives else self.real.cwnd

    def _events(self) -> Iterator[Event]:
        """Feedback without end; :attr:`now` is its time."""
        while True:
            self.net.weather()
            self._send()
            if not self.waiting:
                self.inflight = 0  # every PSN is acknowledged: the residue of rounding goes
                self.now += self.rng.expovariate(1 / 200)
                continue
            back, _, fate, sent, packets, marked = heapq.heappop(self.waiting)
            self.now = max(self.now, back)
            size = self.p.mtu + OVERHEAD
            if fate == "ack":
                yield from self._sack(sent, packets, size, marked)
                continue
            for _ in range(packets):
                yield TrimNack(int(self.now), size, self.inflight) if fate == "trim" else Loss(size)
                self.inflight -= size

    def _send(self) -> None:
        size = self.p.mtu + OVERHEAD
        while self.net.busy and self.inflight + self.p.mtu <= self._window():
            packets = self.rng.choice(CHUNK_PACKETS)
            while packets > 1 and self.inflight + (packets - 1) * size + self.p.mtu > self._window():
                packets -= 1
            back, fate, marked = self.net.send(self.now, packets * size)
            self.numbers += 1
            heapq.heappush(self.waiting, (back, self.numbers, fate, int(self.now), packets, marked))
            self.inflight += packets * size

    def _sack(self, sent: int, packets: int, size: int, marked: bool) -> Iterator[Event]:
        rng = self.rng
        self.rcvd += packets * size
        if rng.random() < 0.01:
            return  # this SACK is lost, the next one reports its bytes
        total = -(-self.rcvd // RCVD_UNIT)
        newly = RCVD_UNIT * (total - self.seen)
        self.seen = total
        self.inflight -= newly
        echo = 0 if rng.random() < 0.005 else (sent & 0xFFFF) or 1
        if self.net.penalty:
            self.restore = rng.random() < 0.8
        yield Sack(int(self.now), newly, self.inflight, echo, marked, self.net.penalty, self.restore and not self.net.penalty)
        if rng.random() < 0.01:  # a duplicate's SACK: nothing new
            yield Sack(int(self.now), 0, self.inflight, 0, marked and rng.random() < 0.5)
