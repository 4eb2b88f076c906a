"""NSCC: parameters, samples and the reaction's table, float and fixed-point alike (MRC-REQ-300 to 302, 306 to 309, 313 to 318)."""

from __future__ import annotations

import doctest
import math

import pytest

from model import congestion, nscc_fixed, nscc_float
from model.congestion import Loss, Parameters, Sack, TrimNack, sample_ticks
from model.spec import NackReason
from model.tests.nscc_cases import BASE, NOW, P100, P400, P800, Both, avg_of, context, step


def sack(delay: int | None, newly: int = 8192, marked: bool = False, now: int = NOW) -> Sack:
    """A SACK whose sample lies ``delay`` ticks above the measured base; None: no sample."""
    return Sack(now, newly, 50_000, 0 if delay is None else (now - BASE - delay) & 0xFFFF, marked)


# --- parameters ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "p, bdp, max_wnd, scaling_a, alpha_us, fi, eta, fi_scale, registers",
    [
        (P100, 150_000, 225_000, 1, 1365.3, 20_480, 614.4, 0.25, (2796, 20_480, 614, 64)),
        (P400, 600_000, 900_000, 4, 5461.3, 81_920, 2457.6, 1, (11185, 81_920, 2458, 256)),
        (P800, 1_200_000, 1_800_000, 8, 10_922.7, 163_840, 4915.2, 2, (22370, 163_840, 4915, 512)),
    ],
)
def test_worked_values(p: Parameters, bdp: float, max_wnd: int, scaling_a: float, alpha_us: float, fi: float, eta: float,
                       fi_scale: float, registers: tuple[int, ...]) -> None:  # fmt: skip
    """MRC-REQ-300, MRC-REQ-330: the table of the facts, section 10, and the integers that stand for it."""
    assert (p.bdp, p.max_wnd, p.scaling_a, p.target) == (bdp, max_wnd, scaling_a, 9000)
    assert (round(p.alpha * 1000, 1), p.fi, round(p.eta, 1), p.fi_scale) == (alpha_us, fi, eta, fi_scale)
    assert (p.scaling_b, p.qa_threshold, p.qa_limit, p.adjust_bytes, p.adjust_period) == (0.75, 36_000, max_wnd // 8, 32_768, 12_000)
    c = nscc_fixed.Constants(p)
    assert (c.alpha_q8, c.fi, c.eta, c.fi_scale_q8) == registers
    assert (c.base_rtt, c.target, c.near_zero, c.qa_threshold, c.adjust_period) == (1500, 1125, 125, 4500, 1500)
    assert (c.max_wnd, c.mtu, c.qa_limit, c.adjust_bytes, c.max_n) == (max_wnd, 4096, max_wnd // 8, 32_768, 2 * max_wnd // 256)
    assert nscc_fixed.GAMMA_Q16 == 52429 and nscc_fixed.MIN_FACTOR_Q16 == 32768


def test_without_trimming_the_target_is_base_rtt() -> None:
    """MRC-REQ-300: target = 0.75 base_rtt with trimming, 1.0 without; alpha does not depend on it."""
    p = Parameters(100, 12_000, 4096, False)
    assert p.target == 12_000 and math.isclose(p.alpha, P100.alpha)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((100, 12_000, 1500), "one of 256"),
        ((0, 12_000, 4096), "positive"),
        ((math.nan, 12_000, 4096), "positive"),
        ((100, 0, 4096), "base_rtt_ns"),
        ((100, 4_194_177, 4096), "at most 4194176"),
        ((1, 12_000, 4096), "below one MTU"),
    ],
)
def test_wrong_parameters(arguments: tuple[float, float, int], says: str) -> None:
    """A wrong size is refused with what would be right."""
    with pytest.raises(ValueError, match=says):
        Parameters(*arguments)


def test_registers_too_small() -> None:
    """MRC-REQ-327, MRC-REQ-330: a window above 24 bits, or an alpha that rounds to nothing, is refused."""
    with pytest.raises(ValueError, match="24 bits"):
        nscc_fixed.Constants(Parameters(800, 200_000, 4096))
    with pytest.raises(ValueError, match="could not grow"):
        nscc_fixed.Constants(Parameters(0.0004, 4_000_000, 256))


@pytest.mark.parametrize("event, says", [
    (lambda: Sack(-1, 0, 0), "ticks"), (lambda: Sack(0, 100, 0), "256"), (lambda: Sack(0, -256, 0), "256"),
    (lambda: Sack(0, 0, 0, echo=1 << 16), "16 bits"), (lambda: Sack(0, 0, 0, penalty=128), "7 bits"),
    (lambda: TrimNack(-1, 100, 0), "ticks"), (lambda: TrimNack(0, 0, 0), "size"), (lambda: Loss(1 << 16), "size"),
])  # fmt: skip
def test_wrong_events(event: object, says: str) -> None:
    """An event that no packet can cause is refused."""
    assert callable(event)
    with pytest.raises(ValueError, match=says):
        event()


def test_examples() -> None:
    """The examples in the docstrings hold."""
    assert doctest.testmod(congestion) == (0, 3)


def test_initial() -> None:
    """MRC-REQ-302: whole window, base as configured, not armed; adjustment and decrease are possible at once."""
    fixed = nscc_fixed.initial(nscc_fixed.Constants(P100), 5)
    real = nscc_float.initial(nscc_float.Constants(P100))
    assert (fixed.cwnd, fixed.base, fixed.qa_armed, fixed.saved_valid) == (225_000, 1500, 0, 0)
    assert (real.cwnd, real.base, real.qa_end, real.saved) == (225_000, 12_000, None, None)
    for name in ("inc", "fi_count", "fast", "avg", "received", "achieved", "ignored", "to_ignore", "trigger_qa"):
        assert getattr(fixed, name) == getattr(real, name) == 0, name
    both = step(P100, context(P100, now=5, last_adj=fixed.last_adj), Sack(5, 256, 0), now=5)
    assert both.fixed.last_adj == 5 << 4 and both.real.last_adj == 5 * 128  # an adjustment was due


def test_only_trims_are_congestion() -> None:
    """MRC-REQ-324: resource NACKs and PSN_OOR_WINDOW cut nothing."""
    assert congestion.TRIM_REASONS == {NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP}


# --- sample, base, average ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now, echo, rtt", [
    (NOW, 0, None), (NOW, NOW & 0xFFFF, None), (NOW, (NOW - 1) & 0xFFFF, 1), (NOW, (NOW - 0x7FFF) & 0xFFFF, 0x7FFF),
    (NOW, (NOW - 0x8000) & 0xFFFF, None), (NOW, (NOW + 1) & 0xFFFF, None), (0x30002, 0xFFFF, 3), ((1 << 32) + 2, 0xFFFF, 3),
])  # fmt: skip
def test_sample(now: int, echo: int, rtt: int | None) -> None:
    """MRC-REQ-306: 0 ticks, 2^15 and more, and an echo of 0 are no samples; 16-bit ticks wrap."""
    assert sample_ticks(now, echo) == rtt


def average(both: Both, ns: float) -> bool:
    """Whether both averages are ``ns``, the fixed-point one within its gain's 0.1 % and a rounding."""
    fixed = both.fixed.avg * 8 / 256
    return math.isclose(both.real.avg, ns, rel_tol=1e-9) and math.isclose(fixed, ns, rel_tol=1.1e-3, abs_tol=8 / 256)


def test_base_follows_the_smallest_sample() -> None:
    """MRC-REQ-307: a sample below base becomes the base, and its delay is 0; the parameters stay (MRC-REQ-301)."""
    both = step(P100, context(P100), sack(-10))
    assert both.fixed.base == 80 << 4 and both.real.base == 80 * 128
    assert both.fixed.fi_count == both.real.fi_count == 8192  # delay about 0
    s = context(P100, base=80 << 4)  # 70 ticks above this base are just below the configured target
    both = step(P100, s, sack(60))
    assert both.fixed.base == 80 << 4 and both.near("inc", P100.alpha * 8192 * (9000 - 70 * 128))


def test_average() -> None:
    """MRC-REQ-308, MRC-REQ-329: gain 1/80; an unmarked sample above the target counts as base/4, a marked one as itself."""
    s = context(P100, avg=avg_of(40))
    assert average(step(P100, s, sack(20)), (40 - 20 / 80) * 128)
    assert average(step(P100, s, sack(80)), (40 + (BASE / 4 - 40) / 80) * 128)
    assert average(step(P100, s, sack(80, marked=True)), (40 + 40 / 80) * 128)
    assert average(step(P100, s, sack(70)), (40 + 30 / 80) * 128)
    # At the target itself (no trimming, base_rtt 128 ticks) the sample still counts as itself.
    p = Parameters(100, 16_384, 4096, False)
    assert average(step(p, context(p, avg=avg_of(40)), sack(128)), (40 + 88 / 80) * 128)


def test_no_sample_takes_the_average() -> None:
    """MRC-REQ-309: delay = avg, and avg stays."""
    both = step(P100, context(P100, avg=avg_of(80)), sack(None))
    assert both.near("inc", 20_480 * 8192) and average(both, 80 * 128)
    both = step(P100, context(P100, avg=avg_of(20)), sack(None))
    assert both.near("inc", P100.alpha * 8192 * (9000 - 20 * 128)) and average(both, 20 * 128)


# --- the table -----------------------------------------------------------------------------------------------------------------------


def test_row_fast_increase() -> None:
    """MRC-REQ-313: unmarked, delay about 0: after more than cwnd bytes of it, or once on, cwnd += newly x fi_scale and nothing else."""
    for delay in (0, 7):  # 0.896 us
        both = step(P100, context(P100, cwnd=102_400, fi_count=94_208, inc=5), sack(delay, 8448))
        assert both.near("cwnd", 102_400 + 2112) and both.near("fi_count", 102_656) and both.near("inc", 5)
        assert both.fixed.fast == 1 and both.real.fast
    both = step(P100, context(P100, fast=1, fi_count=0), sack(0, 8448))
    assert both.near("cwnd", 102_112) and both.near("fi_count", 8448) and both.fixed.fast == 1 and both.real.fast
    # 1 us itself (here as an average without a sample, 125 units) is not about 0 any more; a little less is.
    for avg, fast in ((125 << 8, False), ((125 << 8) - 32, True)):
        both = step(P100, context(P100, fast=1, avg=avg), sack(None))
        assert bool(both.fixed.fast) is both.real.fast is fast and both.near("cwnd", 102_048 if fast else 100_000)
    # Exactly cwnd bytes are not more than cwnd: proportional.
    both = step(P100, context(P100, cwnd=102_400, fi_count=94_208), sack(0))
    assert both.near("cwnd", 102_400) and both.near("fi_count", 102_400) and both.near("inc", P100.alpha * 8192 * 9000)
    assert both.fixed.fast == 0 and not both.real.fast


def test_row_proportional_increase() -> None:
    """MRC-REQ-314: unmarked, below the target: inc += alpha x newly x (target - delay); not about 0 (from 1 us on) ends the fast one."""
    for delay in (8, 20, 70):
        both = step(P100, context(P100, fast=1, fi_count=90_000, inc=77), sack(delay))
        assert both.near("inc", 77 + P100.alpha * 8192 * (9000 - delay * 128)) and both.near("cwnd", 100_000)
        assert both.fixed.fast == both.fixed.fi_count == both.real.fi_count == 0 and not both.real.fast


def test_row_fair_increase() -> None:
    """MRC-REQ-315: unmarked, target reached: inc += fi x newly; fast and fi_count stay."""
    both = step(P100, context(P100, fast=1, fi_count=512, inc=77), sack(71))
    assert both.near("inc", 77 + 20_480 * 8192) and both.near("fi_count", 512) and both.fixed.fast == 1 and both.real.fast
    p = Parameters(100, 16_384, 4096, False)  # target = 128 ticks exactly
    assert step(p, context(p), sack(128)).near("inc", p.fi * 8192)
    assert step(p, context(p), sack(127)).near("inc", p.alpha * 8192 * 128)


def test_row_decrease() -> None:
    """MRC-REQ-316, MRC-REQ-331: marked, target reached: the cut follows the average; fast and fi_count end."""
    both = step(P100, context(P100, avg=avg_of(100), fast=1, fi_count=512, inc=77), sack(80, marked=True))
    avg = (100 - 20 / 80) * 128
    assert both.near("cwnd", 100_000 * (1 - 0.8 * (avg - 9000) / avg)) and both.near("inc", 77)
    assert both.fixed.last_dec == nscc_fixed.units_of(NOW) and both.real.last_dec == NOW * 128
    assert both.fixed.fast == both.fixed.fi_count == both.real.fi_count == 0 and not both.real.fast
    # Never more than half.
    assert step(P100, context(P100, avg=avg_of(1000)), sack(80, marked=True)).near("cwnd", 50_000)
    # A mark without new bytes (a duplicate's SACK) acts too.
    assert step(P100, context(P100, avg=avg_of(1000)), sack(80, 0, marked=True)).near("cwnd", 50_000)


def test_row_decrease_held_back() -> None:
    """MRC-REQ-316: no cut while the average is at most the target, or within base of the last one; fast and fi_count end all the same."""
    both = step(P100, context(P100, avg=avg_of(60), fast=1, fi_count=512), sack(80, marked=True))
    assert both.near("cwnd", 100_000) and both.fixed.fast == both.fixed.fi_count == both.real.fi_count == 0 and not both.real.fast
    for ago, cut in ((BASE, False), (BASE + 1, True)):
        s = context(P100, avg=avg_of(1000), last_dec=nscc_fixed.units_of(NOW - ago))
        both = step(P100, s, sack(80, marked=True))
        assert both.near("cwnd", 50_000 if cut else 100_000)


def test_row_mark_below_target() -> None:
    """MRC-REQ-317: marked below the target: nothing."""
    both = step(P100, context(P100, avg=avg_of(100), fast=1, fi_count=512, inc=77), sack(70, marked=True))
    assert both.near("cwnd", 100_000) and both.near("inc", 77) and both.near("fi_count", 512) and both.fixed.fast == 1 and both.real.fast


def test_nothing_new_and_no_mark() -> None:
    """MRC-REQ-318: no reaction, but the sample counts."""
    both = step(P100, context(P100, fast=1, fi_count=512, inc=77), sack(20, 0))
    assert both.near("inc", 77) and both.near("fi_count", 512) and both.fixed.fast == 1 and both.real.fast
    assert average(both, 20 / 80 * 128)
