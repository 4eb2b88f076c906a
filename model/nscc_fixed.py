"""NSCC in the fixed-point integers of the hardware. Bytes, and time in units of 8 ns (a tick of 128 ns is 16 units).

Same steps as :mod:`model.nscc_float`, same events; every field has the width of :data:`WIDTHS`, shifts floor, sums saturate. Nothing here
may wrap: ``inc`` needs more than 32 bits from 400 Gb/s on, and a negative ``to_ignore`` must not become huge (N-05).
Two divisions exist, both in functions of their own (``decrease``, ``adjust``).

Source: facts 6, fixed point [D]; MRC-REQ-325 to 331, besides those of the float side.
"""

from __future__ import annotations

from dataclasses import dataclass

from .congestion import GAMMA, MAX_MD_JUMP, NEAR_ZERO_NS, Loss, Parameters, Sack, TrimNack, sample_ticks
from .serial import diff, wrap
from .spec import RCVD_UNIT

UNIT_NS = 8
TICK_SHIFT = 4  # a tick is 2^4 units
TIME_BITS = 32
AVG_FRACTION = 8
AVG_GAIN = 205  # / 2^14 = 1/79.92
AVG_GAIN_SHIFT = 14
GAMMA_Q16 = round(GAMMA * (1 << 16))
MIN_FACTOR_Q16 = round(MAX_MD_JUMP * (1 << 16))
REFRESH_AGE = 1 << (TIME_BITS - 2)  # units; 8.6 s, every interval of the algorithm is far shorter

WIDTHS: dict[str, tuple[int, bool]] = {
    "cwnd": (24, False), "base": (19, False), "inc": (48, False), "fi_count": (24, False), "fast": (1, False), "avg": (27, False),
    "received": (24, False), "achieved": (24, False), "ignored": (24, False), "to_ignore": (25, True),
    "qa_end": (TIME_BITS, False), "qa_armed": (1, False), "trigger_qa": (1, False),
    "last_adj": (TIME_BITS, False), "last_dec": (TIME_BITS, False), "saved": (24, False), "saved_valid": (1, False),
}  # fmt: skip
"""Bits and signedness of each field of the state (MRC-REQ-327)."""

_COUNT_MAX = (1 << 24) - 1
_INC_MAX = (1 << 48) - 1
_SIGNED_MAX = (1 << 24) - 1
_SIGNED_MIN = -(1 << 24)


class Constants:
    """The registers of a context's profile, rounded from :class:`Parameters` (MRC-REQ-330). Times in units of 8 ns.

    All times are exact when base_rtt is a multiple of 32 ns. alpha_q8 is off by at most 0.5 / alpha_q8: the promise of section 6 is for
    networks where alpha_q8 is 100 or more (100 Gb/s, 12 us, MTU 4096: 2796). ValueError where a number does not fit its register.
    """

    __slots__ = ("mtu", "max_wnd", "target", "alpha_q8", "fi", "fi_scale_q8", "eta", "qa_limit", "qa_threshold", "adjust_bytes",
                 "adjust_period", "base_rtt", "near_zero", "max_n")  # fmt: skip

    def __init__(self, p: Parameters) -> None:
        self.mtu = p.mtu
        self.max_wnd = p.max_wnd
        if self.max_wnd > _COUNT_MAX:
            raise ValueError(f"max_wnd = {self.max_wnd} bytes: cwnd has 24 bits; a slower link or a shorter base_rtt")
        self.base_rtt = max(1, _units(p.base_rtt_ns))
        self.target = max(1, _units(p.target))
        self.near_zero = _units(NEAR_ZERO_NS)
        self.qa_threshold = 4 * self.target
        self.qa_limit = p.qa_limit
        self.adjust_bytes = p.adjust_bytes
        self.adjust_period = self.base_rtt
        self.alpha_q8 = _round(256 * p.alpha * UNIT_NS)
        if self.alpha_q8 == 0:
            raise ValueError(f"alpha = {p.alpha * 1000:.3g} bytes per us is below half of 1/256 byte per {UNIT_NS} ns: the window could not "
                             "grow; a faster link or a larger mtu")  # fmt: skip
        self.fi = _round(p.fi)
        self.fi_scale_q8 = _round(256 * p.fi_scale)
        self.eta = _round(p.eta)
        self.max_n = 2 * self.max_wnd // RCVD_UNIT


def _round(value: float) -> int:
    return int(value + 0.5)


def _units(ns: float) -> int:
    return _round(ns / UNIT_NS)


@dataclass(slots=True)
class State:
    """A congestion context as the hardware keeps it; meanings as in ``nscc_float.State``, widths in :data:`WIDTHS`."""

    cwnd: int
    base: int
    last_adj: int
    last_dec: int
    inc: int = 0
    fi_count: int = 0
    fast: int = 0
    avg: int = 0  # 8 fraction bits
    received: int = 0
    achieved: int = 0
    ignored: int = 0
    to_ignore: int = 0
    qa_end: int = 0
    qa_armed: int = 0
    trigger_qa: int = 0
    saved: int = 0
    saved_valid: int = 0

    def copy(self) -> State:
        """An independent copy."""
        return State(self.cwnd, self.base, self.last_adj, self.last_dec, self.inc, self.fi_count, self.fast, self.avg, self.received,
                     self.achieved, self.ignored, self.to_ignore, self.qa_end, self.qa_armed, self.trigger_qa, self.saved,
                     self.saved_valid)  # fmt: skip


def units_of(tick: int) -> int:
    """A tick as time inside NSCC: 32 bits of 8 ns, of which the tick's low 28 bits are seen (MRC-REQ-325)."""
    return wrap(tick << TICK_SHIFT, TIME_BITS)


def initial(c: Constants, now: int) -> State:
    """The context of a new connection at tick ``now``: the whole window is open, last_adj and last_dec long ago (MRC-REQ-302)."""
    long_ago = wrap(units_of(now) - REFRESH_AGE, TIME_BITS)
    return State(cwnd=c.max_wnd, base=c.base_rtt, last_adj=long_ago, last_dec=long_ago)


def on_sack(state: State, c: Constants, ev: Sack) -> State:
    """One valid SACK (MRC-REQ-303 to 321)."""
    s = state.copy()
    now = units_of(ev.now)
    n = min(ev.newly // RCVD_UNIT, c.max_n)
    s.received = _count(s.received + n * RCVD_UNIT)
    s.achieved = _count(s.achieved + n * RCVD_UNIT)
    s.ignored = _count(s.ignored + n * RCVD_UNIT)
    if _penalty(s, c, n, ev):
        return s
    rtt = sample_ticks(ev.now, ev.echo)
    delay = s.avg >> AVG_FRACTION if rtt is None else _sample(s, c, rtt << TICK_SHIFT, ev.marked)
    if _quick_adapt(s, c, now, ev.marked, False, delay, ev.inflight):
        return s
    if n or ev.marked:
        _react(s, c, now, n, ev.marked, delay)
    _adjust(s, c, now)
    return s


def on_trim_nack(state: State, c: Constants, ev: TrimNack) -> State:
    """One NACK TRIMMED or TRIMMED_LASTHOP (MRC-REQ-322)."""
    s = state.copy()
    _average(s, c.base_rtt)
    s.ignored = _count(s.ignored + ev.size)
    s.trigger_qa = 1
    if not _quick_adapt(s, c, units_of(ev.now), True, True, 0, ev.inflight):
        s.cwnd = _clamp(s.cwnd - ev.size, c)
    return s


def on_loss(state: State, c: Constants, ev: Loss) -> State:
    """One packet inferred lost or timed out (MRC-REQ-323)."""
    s = state.copy()
    s.cwnd = _clamp(s.cwnd - ev.size, c)
    return s


def refresh(state: State, now: int) -> State:
    """A background step on an idle context: times older than 2^30 units become 2^30 units old, at tick ``now`` (MRC-REQ-325).

    No decision changes by it. Every context needs one within each 2^30 units (8.6 s), before a signed compare could turn over.
    """
    s = state.copy()
    units = units_of(now)
    oldest = wrap(units - REFRESH_AGE, TIME_BITS)
    for name in ("last_adj", "last_dec", "qa_end"):
        if diff(units, getattr(s, name), TIME_BITS) > REFRESH_AGE:
            setattr(s, name, oldest)
    return s


def penalty(state: State, c: Constants, ev: Sack) -> tuple[State, bool]:
    """The receiver's penalty of a SACK alone, and whether it ends the step (MRC-REQ-304, MRC-REQ-305)."""
    s = state.copy()
    return s, _penalty(s, c, min(ev.newly // RCVD_UNIT, c.max_n), ev)


def quick_adapt(state: State, c: Constants, now: int, marked: bool, loss: bool, delay: int, inflight: int) -> tuple[State, bool]:
    """Quick adapt alone, and whether it acted (MRC-REQ-310 to 312). ``now`` a tick, ``delay`` in units, ``inflight`` in bytes."""
    s = state.copy()
    return s, _quick_adapt(s, c, units_of(now), marked, loss, delay, inflight)


def decrease(cwnd: int, avg: int, target: int) -> int:
    """The multiplicative decrease: a division, 43 by 27 bits. ``avg`` with 8 fraction bits, above ``target`` (MRC-REQ-331)."""
    cut = GAMMA_Q16 * (avg - (target << AVG_FRACTION)) // avg
    return (cwnd * max(MIN_FACTOR_Q16, (1 << 16) - cut)) >> 16


def adjust(state: State, c: Constants, now: int) -> State:
    """Applies the collected increase when due, at tick ``now``: a division, 48 by 24 bits (MRC-REQ-319 to 321)."""
    s = state.copy()
    _adjust(s, c, units_of(now))
    return s


# The parts of a step below change the copy that their caller made; ``now`` is in units.


def _count(value: int) -> int:
    return min(value, _COUNT_MAX)


def _clamp(cwnd: int, c: Constants) -> int:
    """MRC-REQ-319."""
    return min(max(cwnd, c.mtu), c.max_wnd)


def _signed25(value: int) -> int:
    return min(max(value, _SIGNED_MIN), _SIGNED_MAX)


def _penalty(s: State, c: Constants, n: int, ev: Sack) -> bool:
    if ev.penalty:
        if not s.saved_valid:
            s.saved = s.cwnd
            s.saved_valid = 1
        # penalty x newly / 128 is exact, newly being 256 n.
        s.cwnd = max(min(s.cwnd, _signed25(ev.inflight)) - 2 * ev.penalty * n, c.mtu)
        return True
    if ev.restore and s.saved_valid:
        s.cwnd = s.saved
        s.saved = s.saved_valid = 0
    return False


def _average(s: State, delay: int) -> None:
    """Gain 1/80, rounded to the nearest 1/256 unit (MRC-REQ-329)."""
    s.avg += (((delay << AVG_FRACTION) - s.avg) * AVG_GAIN + (1 << AVG_GAIN_SHIFT - 1)) >> AVG_GAIN_SHIFT


def _sample(s: State, c: Constants, rtt: int, marked: bool) -> int:
    """Takes the sample into base and average; the queueing delay (MRC-REQ-307, MRC-REQ-308)."""
    s.base = min(s.base, rtt)
    delay = rtt - s.base
    _average(s, (s.base + 2) >> 2 if not marked and delay > c.target else delay)
    return delay


def _quick_adapt(s: State, c: Constants, now: int, marked: bool, loss: bool, delay: int, inflight: int) -> bool:
    acted = False
    if marked and s.ignored < s.to_ignore:  # signed: a negative to_ignore ignores nothing
        acted = True
    elif not s.qa_armed or diff(now, s.qa_end, TIME_BITS) > 0:
        if s.qa_armed and (s.trigger_qa or loss or delay > c.qa_threshold) and s.achieved < c.qa_limit:
            s.cwnd = max(s.achieved, c.mtu)
            s.to_ignore = _signed25(inflight)
            s.ignored = 0
            s.trigger_qa = 0
            acted = True
        s.achieved = 0
        s.qa_armed = 1
        s.qa_end = wrap(now + s.base + c.target, TIME_BITS)
    if acted:
        s.inc = s.received = 0
    return acted


def _react(s: State, c: Constants, now: int, n: int, marked: bool, delay: int) -> None:
    if marked:
        if delay >= c.target:  # MRC-REQ-316; below the target a mark alone does nothing, MRC-REQ-317
            s.fast = s.fi_count = 0
            if s.avg > c.target << AVG_FRACTION and diff(now, s.last_dec, TIME_BITS) > s.base:
                s.cwnd = decrease(s.cwnd, s.avg, c.target)
                s.last_dec = now
    elif delay >= c.target:  # MRC-REQ-315
        s.inc = min(s.inc + c.fi * n * RCVD_UNIT, _INC_MAX)
    elif not _fast_increase(s, c, n, delay):  # MRC-REQ-313, MRC-REQ-314
        s.fast = 0
        s.inc = min(s.inc + c.alpha_q8 * n * (c.target - delay), _INC_MAX)


def _fast_increase(s: State, c: Constants, n: int, delay: int) -> bool:
    if delay >= c.near_zero:
        s.fi_count = 0
        return False
    s.fi_count = _count(s.fi_count + n * RCVD_UNIT)
    if s.fi_count > s.cwnd or s.fast:
        s.cwnd = _count(s.cwnd + n * c.fi_scale_q8)
        s.fast = 1
        return True
    return False


def _adjust(s: State, c: Constants, now: int) -> None:
    s.cwnd = _clamp(s.cwnd, c)
    elapsed = diff(now, s.last_adj, TIME_BITS)
    if s.received > c.adjust_bytes or elapsed > c.adjust_period:
        s.cwnd = _count(s.cwnd + s.inc // s.cwnd)
        if elapsed >= c.adjust_period:
            s.cwnd = _count(s.cwnd + c.eta)
            s.last_adj = now
        s.inc = s.received = 0
        s.cwnd = _clamp(s.cwnd, c)
