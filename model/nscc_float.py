"""NSCC in floats: the published formulas, as a reference for :mod:`model.nscc_fixed`. Bytes and ns; events of :mod:`model.congestion`.

Source: facts 6 [U]; MRC-REQ-300 to 324. The table of the reaction (``_react``) cites its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from .congestion import AVERAGE_GAIN, GAMMA, MAX_MD_JUMP, NEAR_ZERO_NS, Loss, Parameters, Sack, TrimNack, sample_ticks
from .spec import TICK_NS


class Constants:
    """The parameters as plain numbers, so that a step does not derive them again. Names as in :class:`Parameters`; times in ns."""

    __slots__ = ("mtu", "max_wnd", "target", "alpha", "fi", "fi_scale", "eta", "qa_limit", "qa_threshold", "adjust_bytes",
                 "adjust_period", "base_rtt")  # fmt: skip

    def __init__(self, p: Parameters) -> None:
        self.mtu = p.mtu
        self.max_wnd = p.max_wnd
        self.target = p.target
        self.alpha = p.alpha
        self.fi = p.fi
        self.fi_scale = p.fi_scale
        self.eta = p.eta
        self.qa_limit = p.qa_limit
        self.qa_threshold = p.qa_threshold
        self.adjust_bytes = p.adjust_bytes
        self.adjust_period = p.adjust_period
        self.base_rtt = p.base_rtt_ns


@dataclass(slots=True)
class State:
    """A congestion context. Windows and counters in bytes, ``inc`` in bytes squared, times in ns."""

    cwnd: float
    base: float  # smallest round-trip time seen, at most the configured one
    inc: float = 0.0  # increase collected since the last adjustment, to be divided by cwnd
    fi_count: float = 0.0  # bytes acknowledged in a row at about no delay
    fast: bool = False  # fast increase is on
    avg: float = 0.0  # average queueing delay
    received: float = 0.0  # since the last adjustment
    achieved: float = 0.0  # since quick adapt's last check
    ignored: float = 0.0  # since quick adapt last acted
    to_ignore: float = 0.0  # bytes whose marks say nothing new after quick adapt acted
    qa_end: float | None = None  # end of quick adapt's period; None: not armed
    trigger_qa: bool = False  # a trim came since quick adapt last acted
    last_adj: float = -inf
    last_dec: float = -inf
    saved: float | None = None  # cwnd before the receiver's penalty

    def copy(self) -> State:
        """An independent copy."""
        return State(self.cwnd, self.base, self.inc, self.fi_count, self.fast, self.avg, self.received, self.achieved, self.ignored,
                     self.to_ignore, self.qa_end, self.trigger_qa, self.last_adj, self.last_dec, self.saved)  # fmt: skip


def initial(c: Constants) -> State:
    """The context of a new connection: the whole window is open (MRC-REQ-302)."""
    return State(cwnd=float(c.max_wnd), base=c.base_rtt)


def on_sack(state: State, c: Constants, ev: Sack) -> State:
    """One valid SACK (MRC-REQ-303 to 321)."""
    s = state.copy()
    now = float(ev.now * TICK_NS)
    s.received += ev.newly
    s.achieved += ev.newly
    s.ignored += ev.newly
    if _penalty(s, c, ev):
        return s
    rtt = sample_ticks(ev.now, ev.echo)
    delay = s.avg if rtt is None else _sample(s, c, float(rtt * TICK_NS), ev.marked)
    if _quick_adapt(s, c, now, ev.marked, False, delay, ev.inflight):
        return s
    if ev.newly or ev.marked:
        _react(s, c, now, ev.newly, ev.marked, delay)
    _adjust(s, c, now)
    return s


def on_trim_nack(state: State, c: Constants, ev: TrimNack) -> State:
    """One NACK TRIMMED or TRIMMED_LASTHOP (MRC-REQ-322)."""
    s = state.copy()
    _average(s, c.base_rtt)
    s.ignored += ev.size
    s.trigger_qa = True
    if not _quick_adapt(s, c, float(ev.now * TICK_NS), True, True, 0.0, ev.inflight):
        s.cwnd = _clamp(s.cwnd - ev.size, c)
    return s


def on_loss(state: State, c: Constants, ev: Loss) -> State:
    """One packet inferred lost or timed out (MRC-REQ-323)."""
    s = state.copy()
    s.cwnd = _clamp(s.cwnd - ev.size, c)
    return s


def penalty(state: State, c: Constants, ev: Sack) -> tuple[State, bool]:
    """The receiver's penalty of a SACK alone, and whether it ends the step (MRC-REQ-304, MRC-REQ-305)."""
    s = state.copy()
    return s, _penalty(s, c, ev)


def quick_adapt(state: State, c: Constants, now: float, marked: bool, loss: bool, delay: float, inflight: float) -> tuple[State, bool]:
    """Quick adapt alone, and whether it acted (MRC-REQ-310 to 312). ``now`` and ``delay`` in ns, ``inflight`` in bytes."""
    s = state.copy()
    return s, _quick_adapt(s, c, now, marked, loss, delay, inflight)


# The parts of a step below change the copy that their caller made.


def _clamp(cwnd: float, c: Constants) -> float:
    """MRC-REQ-319."""
    return min(max(cwnd, c.mtu), c.max_wnd)


def _penalty(s: State, c: Constants, ev: Sack) -> bool:
    if ev.penalty:
        if s.saved is None:
            s.saved = s.cwnd
        s.cwnd = max(min(s.cwnd, ev.inflight) - ev.penalty * ev.newly / 128, c.mtu)
        return True
    if ev.restore and s.saved is not None:
        s.cwnd = s.saved
        s.saved = None
    return False


def _average(s: State, delay: float) -> None:
    s.avg += AVERAGE_GAIN * (delay - s.avg)


def _sample(s: State, c: Constants, rtt: float, marked: bool) -> float:
    """Takes the sample into base and average; the queueing delay (MRC-REQ-307, MRC-REQ-308)."""
    s.base = min(s.base, rtt)
    delay = rtt - s.base
    # A long delay without a mark is a last hop's or the host's: the fabric's queues are not the cause.
    _average(s, s.base / 4 if not marked and delay > c.target else delay)
    return delay


def _quick_adapt(s: State, c: Constants, now: float, marked: bool, loss: bool, delay: float, inflight: float) -> bool:
    acted = False
    if marked and s.ignored < s.to_ignore:
        acted = True
    elif s.qa_end is None or now > s.qa_end:
        if s.qa_end is not None and (s.trigger_qa or loss or delay > c.qa_threshold) and s.achieved < c.qa_limit:
            s.cwnd = max(s.achieved, float(c.mtu))
            s.to_ignore = inflight
            s.ignored = 0.0
            s.trigger_qa = False
            acted = True
        s.achieved = 0.0
        s.qa_end = now + s.base + c.target
    if acted:
        s.inc = s.received = 0.0
    return acted


def _react(s: State, c: Constants, now: float, newly: float, marked: bool, delay: float) -> None:
    if marked:
        if delay >= c.target:  # MRC-REQ-316; below the target a mark alone does nothing, MRC-REQ-317
            s.fast = False
            s.fi_count = 0.0
            _decrease(s, c, now)
    elif delay >= c.target:  # MRC-REQ-315
        s.inc += c.fi * newly
    elif not _fast_increase(s, c, newly, delay):  # MRC-REQ-313, MRC-REQ-314
        s.fast = False
        s.inc += c.alpha * newly * (c.target - delay)


def _fast_increase(s: State, c: Constants, newly: float, delay: float) -> bool:
    if delay >= NEAR_ZERO_NS:
        s.fi_count = 0.0
        return False
    s.fi_count += newly
    if s.fi_count > s.cwnd or s.fast:
        s.cwnd += newly * c.fi_scale
        s.fast = True
        return True
    return False


def _decrease(s: State, c: Constants, now: float) -> None:
    if s.avg > c.target and now - s.last_dec > s.base:
        s.cwnd *= max(1 - GAMMA * (s.avg - c.target) / s.avg, MAX_MD_JUMP)
        s.last_dec = now


def _adjust(s: State, c: Constants, now: float) -> None:
    """Applies what was collected, when due (MRC-REQ-319 to 321)."""
    s.cwnd = _clamp(s.cwnd, c)
    elapsed = now - s.last_adj
    if s.received > c.adjust_bytes or elapsed > c.adjust_period:
        s.cwnd += s.inc / s.cwnd
        if elapsed >= c.adjust_period:
            s.cwnd += c.eta
            s.last_adj = now
        s.inc = s.received = 0.0
        s.cwnd = _clamp(s.cwnd, c)
