"""NSCC: receiver penalty, quick adapt, trims, losses, adjustment, on both sides (MRC-REQ-303 to 305, 310 to 312, 319 to 323)."""

from __future__ import annotations

import pytest

from model import nscc_fixed, nscc_float
from model.congestion import Loss, Parameters, Sack, TrimNack
from model.nscc_loop import float_state
from model.tests.nscc_cases import BASE, NOW, P100, avg_of, context, step

ENDED = nscc_fixed.units_of(NOW) - 1  # quick adapt's period has just ended
DUE = nscc_fixed.units_of(NOW - 100)  # the last adjustment is more than base_rtt ago
QUIET = (NOW - BASE - 80) & 0xFFFF  # an echo 80 ticks above base: above the target, below quick adapt's threshold


def test_newly_is_counted() -> None:
    """MRC-REQ-303: received, achieved and ignored grow by newly, under a penalty too."""
    for penalty in (0, 3):
        both = step(P100, context(P100, received=1024, achieved=2048, ignored=4096), Sack(NOW, 512, 0, QUIET, penalty=penalty))
        assert both.near("received", 1536) and both.near("achieved", 2560) and both.near("ignored", 4608)


# --- receiver penalty -------------------------------------------------------------------------------------------------------------


def test_penalty() -> None:
    """MRC-REQ-304: cwnd is saved once, falls to inflight less p x newly / 128, never below one MTU; the step ends there."""
    both = step(P100, context(P100, inc=77, last_adj=DUE), Sack(NOW, 8192, 60_000, QUIET, True, 64))
    assert both.near("cwnd", 60_000 - 4096) and both.near("inc", 77)
    assert both.fixed.saved == both.real.saved == 100_000 and both.fixed.saved_valid == 1
    assert both.fixed.last_adj == DUE and both.fixed.avg == both.real.avg == 0  # neither adjusted nor sampled
    both = step(P100, both.fixed, Sack(NOW, 256, 90_000, QUIET, False, 1))
    assert both.near("cwnd", 55_904 - 2) and both.fixed.saved == both.real.saved == 100_000
    for inflight in (-300, 0, 5000):
        assert step(P100, context(P100), Sack(NOW, 8192, inflight, penalty=127)).near("cwnd", 4096)


def test_restore() -> None:
    """MRC-REQ-305: the penalty's end with restore_cwnd brings the saved window back, once, and the step goes on."""
    s = context(P100, cwnd=50_000, saved=100_000, saved_valid=1)
    both = step(P100, s, Sack(NOW, 8192, 0, QUIET, restore=True))
    assert both.near("cwnd", 100_000) and both.near("inc", 20_480 * 8192)
    assert both.fixed.saved_valid == 0 and both.real.saved is None
    both = step(P100, both.fixed, Sack(NOW, 256, 0, QUIET, restore=True))
    assert both.near("cwnd", 100_000)
    both = step(P100, s, Sack(NOW, 8192, 0, QUIET))  # not asked for: kept for a later SACK that does
    assert both.near("cwnd", 50_000) and both.fixed.saved_valid == 1 and both.real.saved == 100_000
    both = step(P100, s, Sack(NOW, 8192, 0, QUIET, penalty=1, restore=True))  # not while the penalty lasts
    assert both.near("cwnd", 4096) and both.fixed.saved == both.real.saved == 100_000


def test_penalty_alone() -> None:
    """The penalty is a function of its own: the same window, and whether it ended the step."""
    s, ev = context(P100), Sack(NOW, 8192, 60_000, penalty=64)
    fixed, stop = nscc_fixed.penalty(s, nscc_fixed.Constants(P100), ev)
    real, also = nscc_float.penalty(float_state(s, NOW), nscc_float.Constants(P100), ev)
    assert (fixed.cwnd, real.cwnd, stop, also) == (55_904, 55_904, True, True) and s.cwnd == 100_000
    assert nscc_fixed.penalty(s, nscc_fixed.Constants(P100), Sack(NOW, 8192, 0)) == (s, False)


# --- quick adapt --------------------------------------------------------------------------------------------------------------------


def test_first_check_arms() -> None:
    """MRC-REQ-311: not armed counts as passed and cannot act; the check arms it for base + target."""
    both = step(P100, context(P100, qa_armed=0, achieved=512, trigger_qa=1), Sack(NOW, 256, 0, QUIET))
    assert both.fixed.qa_armed == 1 and both.fixed.qa_end == nscc_fixed.units_of(NOW) + (BASE << 4) + 1125
    assert both.real.qa_end == NOW * 128 + BASE * 128 + 9000
    assert both.near("cwnd", 100_000) and both.near("achieved", 0) and both.fixed.trigger_qa == 1 and both.real.trigger_qa


@pytest.mark.parametrize("trigger, delay, acts", [(1, 80, True), (0, 80, False), (0, 282, True), (0, 281, False)])
def test_period_ends(trigger: int, delay: int, acts: bool) -> None:
    """MRC-REQ-311, MRC-REQ-312: a trim before, or a delay above 4 x target (281.25 ticks), and little achieved: cwnd = achieved."""
    s = context(P100, qa_end=ENDED, achieved=20_000, trigger_qa=trigger, inc=77, received=512, ignored=9, last_adj=DUE)
    both = step(P100, s, Sack(NOW, 256, 70_000, (NOW - BASE - delay) & 0xFFFF))
    assert both.near("achieved", 0) and both.fixed.qa_end == nscc_fixed.units_of(NOW) + (BASE << 4) + 1125
    if acts:
        assert both.near("cwnd", 20_256) and both.near("inc", 0) and both.near("received", 0) and both.near("ignored", 0)
        assert both.fixed.to_ignore == both.real.to_ignore == 70_000
        assert both.fixed.trigger_qa == 0 and not both.real.trigger_qa
        assert both.fixed.last_adj == DUE  # the step ended: no adjustment, though one was due
    else:
        assert both.fixed.to_ignore == 0 and both.fixed.last_adj == nscc_fixed.units_of(NOW)


@pytest.mark.parametrize("achieved, cwnd", [(28_125, 100_000), (28_124, 28_124), (4000, 4096)])
def test_achieved_enough(achieved: int, cwnd: int) -> None:
    """MRC-REQ-311: max_wnd >> 3 = 28 125 bytes in the period are enough; less sets the window, at least one MTU."""
    both = step(P100, context(P100, qa_end=ENDED, achieved=achieved - 256, trigger_qa=1), Sack(NOW, 256, 0, QUIET))
    assert both.near("cwnd", cwnd)


def test_period_not_over() -> None:
    """MRC-REQ-311: at qa_end itself the period still runs."""
    both = step(P100, context(P100, qa_end=ENDED + 1, achieved=512, trigger_qa=1), Sack(NOW, 256, 0, QUIET))
    assert both.near("cwnd", 100_000) and both.near("achieved", 768)


def test_marks_are_ignored() -> None:
    """MRC-REQ-310: after it acted, marks say nothing until what was in flight then is reported; unmarked SACKs count as ever."""
    s = context(P100, ignored=7936, to_ignore=8448, avg=avg_of(1000), inc=77, received=512)
    both = step(P100, s, Sack(NOW, 256, 0, QUIET, True))
    assert both.near("cwnd", 100_000) and both.near("inc", 0) and both.near("received", 0) and both.near("ignored", 8192)
    both = step(P100, both.fixed, Sack(NOW, 256, 0, QUIET, True))  # 8448 are not below 8448
    assert both.near("cwnd", 50_000)
    assert step(P100, s, Sack(NOW, 256, 0, QUIET)).near("inc", 77 + 20_480 * 256)


def test_quick_adapt_alone() -> None:
    """Quick adapt is a function of its own."""
    s = context(P100, qa_end=ENDED, achieved=512)
    for loss in (False, True):
        fixed, acted = nscc_fixed.quick_adapt(s, nscc_fixed.Constants(P100), NOW, False, loss, 0, 9)
        real, also = nscc_float.quick_adapt(float_state(s, NOW), nscc_float.Constants(P100), NOW * 128.0, False, loss, 0, 9)
        assert acted is also is loss and fixed.cwnd == real.cwnd == (4096 if loss else 100_000)


# --- trims and losses ------------------------------------------------------------------------------------------------------------------


def test_trim() -> None:
    """MRC-REQ-322: the average takes base_rtt as a marked sample, quick adapt is triggered, cwnd falls by the packet's size."""
    both = step(P100, context(P100, ignored=100, avg=avg_of(10)), TrimNack(NOW, 4184, 50_000))
    assert both.near("cwnd", 100_000 - 4184) and both.near("ignored", 4284) and both.fixed.trigger_qa == 1 and both.real.trigger_qa
    assert both.real.avg == pytest.approx(1280 + (12_000 - 1280) / 80) and both.fixed.avg / 32 == pytest.approx(both.real.avg, rel=1e-3)
    assert step(P100, context(P100, cwnd=5000), TrimNack(NOW, 4184, 0)).near("cwnd", 4096)


def test_trim_and_quick_adapt() -> None:
    """MRC-REQ-322: quick adapt (marked, loss) comes first; when it acts, or ignores, there is no cut besides."""
    both = step(P100, context(P100, qa_end=ENDED, achieved=20_000), TrimNack(NOW, 4184, 50_000))
    assert both.near("cwnd", 20_000) and both.fixed.to_ignore == both.real.to_ignore == 50_000
    both = step(P100, context(P100, ignored=0, to_ignore=4185), TrimNack(NOW, 4184, 50_000))
    assert both.near("cwnd", 100_000) and both.near("ignored", 4184)
    both = step(P100, context(P100, qa_armed=0), TrimNack(NOW, 4184, 50_000))
    assert both.near("cwnd", 95_816) and both.fixed.qa_armed == 1


def test_loss() -> None:
    """MRC-REQ-323: an inferred loss or a timeout takes the packet's size, never below one MTU, and nothing else."""
    s = context(P100, inc=77, fast=1, fi_count=512)
    both = step(P100, s, Loss(4184))
    assert both.near("cwnd", 95_816)
    both.fixed.cwnd = s.cwnd
    assert both.fixed == s
    assert step(P100, context(P100, cwnd=4096), Loss(4184)).near("cwnd", 4096)


# --- clamp and adjustment ---------------------------------------------------------------------------------------------------------------


def test_adjust_after_bytes() -> None:
    """MRC-REQ-320: more than 8 MTU received: cwnd += inc / cwnd, inc and received start again; no eta before its time (MRC-REQ-321)."""
    s = context(P100, received=32_768 - 256, inc=10_000_000)
    assert step(P100, s, Sack(NOW, 256, 0, QUIET)).near("received", 32_768)
    both = step(P100, s, Sack(NOW, 512, 0, QUIET))
    assert both.near("cwnd", 100_000 + (10_000_000 + 20_480 * 512) / 100_000) and both.near("inc", 0) and both.near("received", 0)
    assert both.fixed.last_adj == s.last_adj


def test_adjust_after_time() -> None:
    """MRC-REQ-320, MRC-REQ-321: more than base_rtt since the last: adjustment and eta, also without new bytes."""
    p = Parameters(100, 12_288, 4096)  # 96 ticks exactly
    for ago, due in ((96, False), (97, True)):
        both = step(p, context(p, inc=10_000_000, last_adj=nscc_fixed.units_of(NOW - ago)), Sack(NOW, 0, 0, QUIET))
        assert both.near("cwnd", 100_000 + 100 + p.eta if due else 100_000)
        assert both.fixed.last_adj == nscc_fixed.units_of(NOW if due else NOW - ago)
    # Exactly base_rtt is not enough for an adjustment, but enough for eta when bytes made one due.
    both = step(p, context(p, inc=10_000_000, received=40_000, last_adj=nscc_fixed.units_of(NOW - 96)), Sack(NOW, 0, 0, QUIET))
    assert both.near("cwnd", 100_100 + p.eta) and both.fixed.last_adj == nscc_fixed.units_of(NOW)


def test_adjust_alone() -> None:
    """The adjustment is a function of its own: what a hardware with one divider runs as its own step."""
    s = context(P100, inc=10_000_000, last_adj=DUE)
    assert nscc_fixed.adjust(s, nscc_fixed.Constants(P100), NOW).cwnd == 100_000 + 100 + 614
    assert s.inc == 10_000_000


def test_clamp() -> None:
    """MRC-REQ-319: MTU <= cwnd <= max_wnd, before the adjustment (so that inc is divided by a legal window) and after it."""
    both = step(P100, context(P100, cwnd=224_990, fast=1), Sack(NOW, 8192, 0, (NOW - BASE) & 0xFFFF))
    assert both.near("cwnd", 225_000)
    both = step(P100, context(P100, cwnd=224_990, fast=1, inc=22_500_000, received=40_000), Sack(NOW, 8192, 0, (NOW - BASE) & 0xFFFF))
    assert both.near("cwnd", 225_000)
    assert step(P100, context(P100, cwnd=4100, avg=avg_of(1000)), Sack(NOW, 256, 0, QUIET, True)).near("cwnd", 4096)
