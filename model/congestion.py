"""NSCC congestion control: what its two implementations share - parameters, events, the round-trip sample.

NSCC is the window-based, sender-side algorithm of Ultra Ethernet 1.0 that MRC uses. It exists twice, on purpose:

* :mod:`model.nscc_float`: the published formulas in floats, time in ns. The reference.
* :mod:`model.nscc_fixed`: the integers of the hardware, time in units of 8 ns. What lockstep compares.

Both read the same events, so a distance between them is a distance of arithmetic alone (:data:`EVENT_BOUND` and its neighbours).
Every step kind is one pure function ``state, parameters, event -> new state``; the state handed in is never changed.

**Its place.** NSCC belongs to the requestor. Where that still takes its window from a register (``cwnd`` of the QP configuration), the
calls go here: at RTS ``initial``; at the end of a SACK step, after in-flight bytes, paths and evidence, ``on_sack``; in a NACK step with a
reason of :data:`TRIM_REASONS`, after the path feedback and before the PSN becomes LOST, ``on_trim_nack``; in JUDGE, and in a TIMEOUT that
makes the head LOST, ``on_loss``; in a slow walk over idle contexts ``nscc_fixed.refresh``. SEND then reads ``state.cwnd``. Hardware has
one divider and may run ``decrease`` and ``adjust`` of a SACK as steps of their own (adjust), if no other step of that context comes
between. One context may serve one QP, or all QPs to a destination: then ``inflight`` is their sum.

Source: facts 6 and 10; MRC-REQ-300 to 334 (docs/spec.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from .spec import MTUS, RCVD_UNIT, TICK_NS, NackReason

TRIM_REASONS = frozenset({NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP})
"""NACK reasons that are congestion signals; every other reason leaves the context as it is (MRC-REQ-324)."""

# The promise: fixed against float, both given the same events.
EVENT_BOUND = 0.01
"""Largest relative distance of cwnd after any event of a trace."""
MEAN_BOUND = 0.001
"""Largest mean relative distance of cwnd over a trace."""
STEP_BOUND_BYTES = 64
"""One step from the same state: changes of cwnd differ by at most this or ``EVENT_BOUND`` of the change."""

# Constants of the algorithm (UET).
GAMMA = 0.8
MAX_MD_JUMP = 0.5
QA_GATE = 3
AVERAGE_GAIN = 1 / 80
NEAR_ZERO_NS = 1000  # a queueing delay below this is "about 0"
REFERENCE_BDP = 150_000  # bytes: 100 Gb/s x 12 us
REFERENCE_RTT_NS = 12_000


def sample_ticks(now: int, echo: int) -> int | None:
    """The round-trip time that a SACK carries, or None (MRC-REQ-306).

    ``now`` is the tick of the step (any width), ``echo`` the reflected 16-bit timestamp, 0 = none; the result is 1 .. 2^15 - 1 ticks.

    >>> sample_ticks(100, 7), sample_ticks(0x20005, 0xFFFB), sample_ticks(100, 0), sample_ticks(100, 101)
    (93, 10, None, None)
    """
    rtt = (now - echo) & 0xFFFF
    return rtt if echo and 0 < rtt < 1 << 15 else None


@dataclass(frozen=True, slots=True)
class Sack:
    """A valid SACK, as congestion control sees it.

    ``now``: tick of the step (128 ns each), counted on without a wrap; the fixed-point side reduces it itself. ``newly``: bytes newly
    reported, 256 x the advance of rcvd_bytes. ``inflight``: bytes in flight of the context after ``newly`` was taken off, signed.
    ``echo``: reflected timestamp, 0 = none (also: a probe answer that matched no slot). ``marked``: SETH.M is not NONE.
    ``penalty``, ``restore``: rcv_cwnd_pen and restore_cwnd of CC_STATE. ValueError for values that no SACK can carry.
    """

    now: int
    newly: int
    inflight: int
    echo: int = 0
    marked: bool = False
    penalty: int = 0
    restore: bool = False

    def __post_init__(self) -> None:
        if self.now < 0:
            raise ValueError(f"now = {self.now}: ticks count up from 0")
        if self.newly < 0 or self.newly % RCVD_UNIT:
            raise ValueError(f"newly = {self.newly}: rcvd_bytes advances by multiples of {RCVD_UNIT} bytes, at least 0")
        if not 0 <= self.echo < 1 << 16:
            raise ValueError(f"echo = {self.echo}: a timestamp has 16 bits")
        if not 0 <= self.penalty < 1 << 7:
            raise ValueError(f"penalty = {self.penalty}: rcv_cwnd_pen has 7 bits")


@dataclass(frozen=True, slots=True)
class TrimNack:
    """An accepted NACK TRIMMED or TRIMMED_LASTHOP. ``size``: UDP length + 40 of the packet, in bytes; ``inflight``: before it becomes LOST."""

    now: int
    size: int
    inflight: int

    def __post_init__(self) -> None:
        if self.now < 0:
            raise ValueError(f"now = {self.now}: ticks count up from 0")
        _check_size(self.size)


@dataclass(frozen=True, slots=True)
class Loss:
    """An inferred loss or a timeout of one packet of ``size`` bytes (UDP length + 40)."""

    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)


def _check_size(size: int) -> None:
    if not 0 < size < 1 << 16:
        raise ValueError(f"size = {size}: UDP length + 40 of one packet, 1 to 65535 bytes")


Event = Sack | TrimNack | Loss


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of one context, derived from the network (MRC-REQ-300). Bytes, ns; rates in bytes per ns.

    ``rate_gbps``: the NIC's rate over all planes. ``base_rtt_ns``: configured round-trip time of an empty network; everything follows
    this one and not the measured one (MRC-REQ-301). ``mtu``: payload MTU. ``trimming``: whether the fabric trims.

    >>> p = Parameters(100, 12_000, 4096, True)
    >>> p.max_wnd, p.target, round(p.alpha * 1000, 1), p.fi, round(p.eta, 1), p.fi_scale
    (225000, 9000.0, 1365.3, 20480.0, 614.4, 0.25)
    """

    rate_gbps: float
    base_rtt_ns: float
    mtu: int = 4096
    trimming: bool = True

    def __post_init__(self) -> None:
        if self.mtu not in MTUS:
            raise ValueError(f"mtu = {self.mtu}: one of {', '.join(map(str, MTUS))} bytes")
        if not self.rate_gbps > 0:
            raise ValueError(f"rate_gbps = {self.rate_gbps}: the link rate must be positive")
        limit = TICK_NS * ((1 << 15) - 1)
        if not 0 < self.base_rtt_ns <= limit:
            raise ValueError(f"base_rtt_ns = {self.base_rtt_ns}: above 0 and at most {limit} ns, the largest sample of a 16-bit timestamp")
        if self.max_wnd < self.mtu:
            raise ValueError(f"max_wnd = 1.5 x {self.rate_gbps} Gb/s x {self.base_rtt_ns} ns = {self.max_wnd} bytes is below one MTU of "
                             f"{self.mtu}: no window is possible; a faster link, a longer base_rtt or a smaller mtu")  # fmt: skip

    @property
    def bdp(self) -> float:
        """Bandwidth-delay product in bytes."""
        return self.rate_gbps * self.base_rtt_ns / 8

    @property
    def max_wnd(self) -> int:
        """Largest window, bytes."""
        return round(1.5 * self.bdp)

    @property
    def scaling_a(self) -> float:
        """This network's BDP against the one UET tuned for."""
        return self.bdp / REFERENCE_BDP

    @property
    def target(self) -> float:
        """Queueing delay aimed at, ns."""
        return (0.75 if self.trimming else 1.0) * self.base_rtt_ns

    @property
    def scaling_b(self) -> float:
        """The target against the reference round-trip time."""
        return self.target / REFERENCE_RTT_NS

    @property
    def alpha(self) -> float:
        """Gain of the proportional increase, bytes per ns."""
        return 4 * self.scaling_a * self.scaling_b * self.mtu / self.target

    @property
    def fi(self) -> float:
        """Fair increase, bytes."""
        return 5 * self.mtu * self.scaling_a

    @property
    def fi_scale(self) -> float:
        """Fast increase: window bytes per byte acknowledged."""
        return 0.25 * self.scaling_a

    @property
    def eta(self) -> float:
        """Constant increase per adjust_period, bytes."""
        return 0.15 * self.mtu * self.scaling_a

    @property
    def qa_limit(self) -> int:
        """Quick adapt acts only if fewer bytes than this were achieved in its period."""
        return self.max_wnd >> QA_GATE

    @property
    def qa_threshold(self) -> float:
        """Delay that lets quick adapt act without a trim, ns."""
        return 4 * self.target

    @property
    def adjust_bytes(self) -> int:
        """Bytes received after which the collected increase is applied."""
        return 8 * self.mtu

    @property
    def adjust_period(self) -> float:
        """Time after which it is applied and eta is due, ns."""
        return self.base_rtt_ns
