"""Two endpoints over a faulty multi-plane link, in one process: the smallest fabric that hurts. Time is in ticks of 128 ns.

Every fault is drawn from one generator, so a link is deterministic from its seed. Plane n of one end is wired to plane n of the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from .endpoint import Endpoint
from .spec import DATA_OPCODES, Dscp, Ecn
from .wire import build
from .wire_packet import TRIMMED, TRIMMED_LASTHOP, Packet


@dataclass(slots=True)
class Faults:
    """What one plane does to frames, both ways. Probabilities 0 .. 1 per frame; mark and trim touch data only.

    ``dead_evs``: entropy values whose frames vanish (a failed path). All may be changed while the link runs.
    """

    delay: int = 8  # ticks of propagation
    jitter: int = 0  # up to this many ticks more
    gap: int = 0  # ticks that one frame occupies the plane: 0 = no bandwidth limit
    drop: float = 0.0
    dup: float = 0.0
    reorder: float = 0.0  # held back by reorder_ticks
    reorder_ticks: int = 60
    mark: float = 0.0
    trim: float = 0.0
    trim_last_hop: float = 0.0
    corrupt: float = 0.0  # one flipped bit of the frame
    down: bool = False  # everything vanishes
    dead_evs: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("drop", "dup", "reorder", "mark", "trim", "trim_last_hop", "corrupt"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} = {getattr(self, name)}: a probability lies in 0 .. 1")
        for name in ("delay", "jitter", "gap", "reorder_ticks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: ticks are not negative")


@dataclass(slots=True)
class PlaneCounts:
    """Frames of one direction of one plane: sent + duplicated = delivered + dropped + in flight."""

    sent: int = 0
    duplicated: int = 0
    delivered: int = 0
    dropped: int = 0
    corrupted: int = 0
    marked: int = 0
    trimmed: int = 0
    reordered: int = 0


@dataclass(order=True, slots=True)
class _Arrival:
    time: int
    number: int
    end: int = field(compare=False)
    plane: int = field(compare=False)
    packet: Packet | bytes = field(compare=False)


class Link:
    """Endpoints ``a`` and ``b`` with ``faults`` (one for all planes, or one per plane).

    ``frames`` True sends bytes instead of :class:`Packet`, through build and parse. ``start`` is the first tick. ``capture`` (if given) sees
    every frame as it is sent: tick, sending end (0 = a), plane, packet. ``now`` is the time, not wrapped.
    """

    def __init__(
        self, a: Endpoint, b: Endpoint, seed: int = 0, faults: Faults | Sequence[Faults] | None = None, frames: bool = False,
        start: int = 0, capture: Callable[[int, int, int, Packet], None] | None = None,
    ) -> None:  # fmt: skip
        planes = a.sizes.planes
        if b.sizes.planes != planes:
            raise ValueError(f"the ends have {planes} and {b.sizes.planes} planes; a link wires equal numbers")
        given = faults or Faults()
        self.faults = [replace(given) for _ in range(planes)] if isinstance(given, Faults) else list(given)
        if len(self.faults) != planes:
            raise ValueError(f"{len(self.faults)} fault sets for {planes} planes")
        self.ends = (a, b)
        self.now = start
        self.frames = frames
        self.capture = capture
        self.random = random.Random(f"link {seed}")
        self.counts = [[PlaneCounts() for _ in range(planes)] for _ in range(2)]  # by sending end and plane
        self._free = [[start] * planes for _ in range(2)]
        self._heap: list[_Arrival] = []
        self._number = 0

    # --- a frame's way ----------------------------------------------------------------------------------------------------------------
    def _send(self, end: int, plane: int, packet: Packet) -> None:
        if self.capture is not None:
            self.capture(self.now, end, plane, packet)
        faults, counts, rnd = self.faults[plane], self.counts[end][plane], self.random.random
        counts.sent += 1
        start = max(self.now, self._free[end][plane])
        self._free[end][plane] = start + faults.gap
        copies = 1
        if faults.dup and rnd() < faults.dup:
            copies = 2
            counts.duplicated += 1
        for _ in range(copies):
            if faults.down or packet.ev in faults.dead_evs or (faults.drop and rnd() < faults.drop):
                counts.dropped += 1
                continue
            time = start + faults.gap + faults.delay
            if faults.jitter:
                time += self.random.randrange(faults.jitter + 1)
            if faults.reorder and rnd() < faults.reorder:
                counts.reordered += 1
                time += faults.reorder_ticks
            arriving = self._touch(end, packet, faults, counts)
            if arriving is None:
                counts.dropped += 1
                continue
            self._number += 1
            heappush(self._heap, _Arrival(time, self._number, 1 - end, plane, arriving))

    def _touch(self, end: int, packet: Packet, faults: Faults, counts: PlaneCounts) -> Packet | bytes | None:
        """The packet as switches leave it; None when the receiver would see nothing of it."""
        rnd, wire = self.random.random, self.ends[end].wire
        if packet.opcode in DATA_OPCODES:
            last_hop = faults.trim_last_hop and rnd() < faults.trim_last_hop
            if last_hop or (faults.trim and rnd() < faults.trim):
                counts.trimmed += 1
                trimmed, dscp = (TRIMMED_LASTHOP, Dscp.TRIMMED_LASTHOP) if last_hop else (TRIMMED, Dscp.TRIMMED)
                packet = replace(packet, payload=b"", pad_error=0, trimmed=trimmed, dscp=wire.dscp[dscp])
            if faults.mark and rnd() < faults.mark and packet.ecn != Ecn.NOT_ECT:
                counts.marked += 1
                packet = replace(packet, ecn=Ecn.CE.value)
        corrupt = faults.corrupt and rnd() < faults.corrupt
        if corrupt:
            counts.corrupted += 1
        if not self.frames:
            return None if corrupt and not packet.trimmed else packet  # the ICRC finds every single flipped bit that matters
        frame = bytearray(build(packet, wire, min_frame=60))
        if corrupt:
            bit = self.random.randrange(8 * len(frame))
            frame[bit // 8] ^= 1 << bit % 8
        return bytes(frame)

    # --- time -------------------------------------------------------------------------------------------------------------------------
    def _next(self) -> int | None:
        """When something happens next: a frame arrives or an endpoint has something to do."""
        times = [self._heap[0].time] if self._heap else []
        for end in self.ends:
            deadline = end.next_deadline()
            if deadline is not None:
                times.append(deadline)
        return min(times) if times else None

    def step(self) -> None:
        """Everything that happens at the present tick: arrivals in order, then both ends."""
        while self._heap and self._heap[0].time <= self.now:
            arrival = heappop(self._heap)
            self.counts[1 - arrival.end][arrival.plane].delivered += 1
            self.ends[arrival.end].receive(arrival.plane, arrival.packet, self.now)
        for number, end in enumerate(self.ends):
            for plane, packet in end.run(self.now):
                self._send(number, plane, packet)

    def run(self, ticks: int, until: Callable[[], bool] | None = None) -> bool:
        """Let ``ticks`` pass, or fewer: stops when ``until`` holds (checked after each step) or nothing can happen any more.

        True when ``until`` held (without ``until``: when nothing is left to happen).
        """
        end = self.now + ticks
        while True:
            self.step()
            if until is not None and until():
                return True
            upcoming = self._next()
            if upcoming is None:
                return until is None
            if upcoming > end:
                self.now = end
                return False
            arrives_now = self._heap and self._heap[0].time <= self.now
            self.now = max(upcoming, self.now if arrives_now else self.now + 1)

    @property
    def in_flight(self) -> int:
        """Frames on their way."""
        return len(self._heap)
