"""What the congestion tests share: both implementations behind one face, states made to order.

Most tests take one step on both sides from the same state; only the tolerance differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model import nscc_fixed, nscc_float
from model.congestion import Event, Parameters
from model.nscc_loop import float_state, step_fixed, step_float

P100 = Parameters(100, 12_000, 4096, True)
P400 = Parameters(400, 12_000, 4096, True)
P800 = Parameters(800, 12_000, 4096, True)

NOW = 1_000_000  # tick at which the made-up events happen
BASE = 90  # ticks: the measured base_rtt of the made-up states, 11.52 us
TARGET_TICKS = 70.3125  # 9 us


def context(p: Parameters, now: int = NOW, **changes: int) -> nscc_fixed.State:
    """A fixed-point context at tick ``now`` that has just been adjusted, so that a step shows its own effect alone.

    base 90 ticks, quick adapt armed and not due, last decrease long ago.
    """
    c = nscc_fixed.Constants(p)
    units = nscc_fixed.units_of(now)
    s = nscc_fixed.initial(c, now)
    s = replace(s, cwnd=100_000, base=BASE << 4, last_adj=units, qa_armed=1, qa_end=nscc_fixed.units_of(now + 100))
    return replace(s, **changes)


def avg_of(ticks: float) -> int:
    """An average queueing delay of ``ticks`` as the fixed-point state holds it."""
    return int(ticks * 16 * 256)


@dataclass
class Both:
    """The results of one event from the same state: fixed-point and float."""

    fixed: nscc_fixed.State
    real: nscc_float.State

    def near(self, name: str, value: float, relative: float = 1e-3, absolute: float = 1.0) -> bool:
        """Whether both sides hold ``value`` bytes (or bytes squared) in field ``name``; the float side to 1e-9."""
        fixed, real = float(getattr(self.fixed, name)), float(getattr(self.real, name))
        return abs(fixed - value) <= max(relative * abs(value), absolute) and abs(real - value) <= 1e-9 * abs(value) + 1e-6


def step(p: Parameters, s: nscc_fixed.State, ev: Event, now: int = NOW) -> Both:
    """One event on both sides from the state ``s`` at tick ``now``; checks that the states handed in stay as they are."""
    real = float_state(s, now)
    copies = s.copy(), real.copy()
    out = Both(step_fixed(s, nscc_fixed.Constants(p), ev), step_float(real, nscc_float.Constants(p), ev))
    assert (s, real) == copies, "a step changed its argument"
    return out


def in_widths(s: nscc_fixed.State) -> bool:
    """Every field of the state fits its width."""
    for name, (bits, signed) in nscc_fixed.WIDTHS.items():
        low = -(1 << bits - 1) if signed else 0
        if not low <= getattr(s, name) < low + (1 << bits):
            return False
    return True
