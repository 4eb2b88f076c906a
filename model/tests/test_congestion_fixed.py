"""NSCC: what hardware arithmetic can get wrong - saturation, sign, wrap, fraction bits - and the invariants of both sides.

Failure modes N-01, N-03, N-05, N-06; invariant 11 of the facts; MRC-REQ-325 to 331 and 334.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from model import nscc_fixed, nscc_float
from model.congestion import Event, Loss, Parameters, Sack, TrimNack
from model.nscc_loop import float_state, step_excess, step_fixed, step_float
from model.tests.nscc_cases import BASE, NOW, P100, P400, P800, avg_of, context, in_widths, step

C100, C800 = nscc_fixed.Constants(P100), nscc_fixed.Constants(P800)
LONG = (NOW - BASE - 80) & 0xFFFF  # an echo 80 ticks above base: above the target
COUNT_MAX, INC_MAX = (1 << 24) - 1, (1 << 48) - 1


def test_inc_needs_more_than_32_bits() -> None:
    """N-05, MRC-REQ-327: a large SACK above the target at 400 and 800 Gb/s collects more than 2^32 bytes squared, and all of it counts."""
    for p in (P400, P800):
        newly = 256 * 1024
        collected = int(p.fi) * newly
        assert collected > 1 << 32
        both = step(p, context(p, cwnd=500_000), Sack(NOW, newly, 0, LONG))
        assert both.near("cwnd", 500_000 + collected / 500_000)
        # Without an adjustment it stays in the accumulator.
        s, total = context(p, cwnd=500_000), 0
        for _ in range(5):
            s = replace(nscc_fixed.on_sack(s, nscc_fixed.Constants(p), Sack(NOW, 30_720, 0, LONG)), received=0)
            total += int(p.fi) * 30_720
        assert s.inc == total > 1 << 32


def test_inc_saturates() -> None:
    """N-05, MRC-REQ-327: the accumulator stays at its end, and so does the window."""
    for delay in (20, 80):
        s = context(P800, inc=INC_MAX - 5)
        s = nscc_fixed.on_sack(s, C800, Sack(NOW, 8192, 0, (NOW - BASE - delay) & 0xFFFF))
        assert s.inc == INC_MAX
    s = nscc_fixed.adjust(replace(s, cwnd=4096, received=40_000), C800, NOW)
    assert s.cwnd == P800.max_wnd and s.inc == 0


def test_counters_saturate() -> None:
    """N-03, MRC-REQ-327: received, achieved, ignored and fi_count stop at 2^24 - 1."""
    s = context(P100, received=COUNT_MAX - 9, achieved=COUNT_MAX - 9, ignored=COUNT_MAX - 9, fi_count=COUNT_MAX - 9)
    after = nscc_fixed.on_sack(s, C100, Sack(NOW, 256, 0, (NOW - BASE) & 0xFFFF))
    assert (after.achieved, after.ignored, after.fi_count) == (COUNT_MAX,) * 3
    assert nscc_fixed.on_sack(s, C100, Sack(NOW, 256, 0, penalty=1)).received == COUNT_MAX
    assert nscc_fixed.on_trim_nack(s, C100, TrimNack(NOW, 4184, 0)).ignored == COUNT_MAX


def test_newly_is_capped() -> None:
    """MRC-REQ-326: one SACK counts for at most 2 x max_wnd."""
    after = nscc_fixed.on_sack(context(P100), C100, Sack(NOW, 256 << 20, 0, penalty=1))
    assert after.received == after.achieved == 256 * (2 * 225_000 // 256)


def test_negative_in_flight() -> None:
    """N-05, MRC-REQ-328: bytes in flight may be below zero by a rounding; a to_ignore made of it ignores nothing."""
    s = context(P100, qa_end=nscc_fixed.units_of(NOW) - 1, trigger_qa=1)
    both = step(P100, s, Sack(NOW, 256, -40, LONG))
    assert both.fixed.to_ignore == both.real.to_ignore == -40
    both = step(P100, replace(both.fixed, avg=avg_of(1000), cwnd=100_000), Sack(NOW, 0, -40, LONG, True))
    assert both.near("cwnd", 50_000)
    for inflight, held in ((1 << 30, (1 << 24) - 1), (-(1 << 30), -(1 << 24))):
        assert nscc_fixed.on_sack(s, C100, Sack(NOW, 256, inflight, LONG)).to_ignore == held


def test_small_changes_move_the_average() -> None:
    """N-06, MRC-REQ-329: delays of 1 tick, and changes by less than 80 ticks, arrive in the average; it never leaves floats by 0.2 %."""
    c = nscc_float.Constants(P100)
    for delays in ((1,), (10,), (60, 65, 61), (3, 0)):
        s = context(P100)
        real = float_state(s, NOW)
        for number in range(3000):
            ev = Sack(NOW, 0, 0, (NOW - BASE - delays[number % len(delays)]) & 0xFFFF)
            s, real = nscc_fixed.on_sack(s, C100, ev), nscc_float.on_sack(real, c, ev)
            assert abs(s.avg / 32 - real.avg) <= 0.002 * real.avg + 1.5  # ns; 40/256 units, where the rounding comes to rest
        mean = sum(delays) / len(delays)
        assert abs(s.avg / 4096 - mean) < 0.1 + 0.01 * mean  # ticks


def test_average_is_exact() -> None:
    """MRC-REQ-329: (((sample << 8) - avg) x 205 + 8192) >> 14, also downwards."""
    assert step(P100, context(P100, avg=1000), Sack(NOW, 0, 0, (NOW - BASE - 20) & 0xFFFF)).fixed.avg == 1000 + ((81_920 - 1000) * 205 + 8192 >> 14)
    assert step(P100, context(P100, avg=100_000), Sack(NOW, 0, 0, (NOW - BASE) & 0xFFFF)).fixed.avg == 100_000 + (-100_000 * 205 + 8192 >> 14)


def test_decrease_is_exact() -> None:
    """MRC-REQ-331: one division, floors, never below half."""
    assert nscc_fixed.decrease(100_000, 1125 << 8, 1125) == 100_000
    assert nscc_fixed.decrease(100_000, 2250 << 8, 1125) == 100_000 * (65_536 - 26_214) >> 16
    assert nscc_fixed.decrease(100_000, 1 << 26, 1125) == 50_000


def test_increase_is_exact() -> None:
    """MRC-REQ-330: inc += alpha_q8 x n x (target - delay), or fi x n x 256; fast increase adds n x fi_scale_q8."""
    assert step(P100, context(P100), Sack(NOW, 8192, 0, (NOW - BASE - 20) & 0xFFFF)).fixed.inc == 2796 * 32 * (1125 - 320)
    assert step(P100, context(P100), Sack(NOW, 8192, 0, LONG)).fixed.inc == 20_480 * 8192
    assert step(P100, context(P100, fast=1), Sack(NOW, 8192, 0, (NOW - BASE) & 0xFFFF)).fixed.cwnd == 100_000 + 32 * 64


# --- time ---------------------------------------------------------------------------------------------------------------------------------

Draw = st.tuples(st.integers(0, 400), st.sampled_from((0, 256, 4352, 16_640)), st.integers(-500, 500_000), st.integers(0, 700),
                 st.booleans(), st.sampled_from((0, 0, 0, 1, 127)), st.sampled_from(("sack", "sack", "sack", "trim", "loss")))  # fmt: skip
EVENTS = st.lists(Draw, min_size=1, max_size=60)
RATES = st.sampled_from((P100, P400, P800, Parameters(200, 9_984, 1024, False)))


def events_of(draws: list[tuple[int, int, int, int, bool, int, str]], start: int) -> list[Event]:
    """Events from ``start`` on: each drawn as gap, newly, inflight, round trip, mark, penalty and kind."""
    out: list[Event] = []
    now = start
    for gap, newly, inflight, rtt, marked, penalty, kind in draws:
        now += gap
        if kind == "sack":
            out.append(Sack(now, newly, inflight, (now - rtt) & 0xFFFF, marked, penalty, restore=penalty == 0))
        else:
            out.append(TrimNack(now, 4184, inflight) if kind == "trim" else Loss(4184))
    return out


@settings(max_examples=60, deadline=None)
@given(RATES, EVENTS, st.sampled_from((1 << 28, 1 << 32)), st.integers(1, 5000))
def test_time_wraps(p: Parameters, draws: list[tuple[int, int, int, int, bool, int, str]], wrap: int, before: int) -> None:
    """MRC-REQ-325: a history across the wrap of ticks or units equals the same history far from it."""
    c = nscc_fixed.Constants(p)
    near = wrap - before
    far = near - (1 << 27) + (1 << 20)  # the same 16 low bits
    a, b = nscc_fixed.initial(c, near), nscc_fixed.initial(c, far)
    for one, other in zip(events_of(draws, near), events_of(draws, far), strict=True):
        a, b = step_fixed(a, c, one), step_fixed(b, c, other)
        shift = nscc_fixed.units_of(near - far)
        moved = {name: (getattr(b, name) + shift) % (1 << 32) for name in ("last_adj", "last_dec", "qa_end")}
        if not b.qa_armed:
            moved["qa_end"] = b.qa_end
        assert a == replace(b, **moved)


def test_idle_context() -> None:
    """MRC-REQ-325: refreshed at least every 8.6 s, a context idle for any time acts as it would without a wrap; unrefreshed it would not."""
    quarter = 1 << 26  # ticks: 2^30 units
    for idle in (quarter // 2, 2 * quarter + 5, 3 * quarter, 7 * quarter + 11):
        s = context(P100, qa_end=nscc_fixed.units_of(NOW), trigger_qa=1)
        for now in range(NOW + quarter // 3, NOW + idle, quarter // 3):
            s = nscc_fixed.refresh(s, now)
        end = NOW + idle
        after = nscc_fixed.on_sack(s, C100, Sack(end, 256, 7, 0))
        assert after.cwnd == 4096 and after.to_ignore == 7  # the period of quick adapt is over
        s = replace(s, trigger_qa=0, qa_end=s.qa_end, avg=avg_of(1000))
        after = nscc_fixed.on_sack(s, C100, Sack(end, 256, 7, (end - BASE - 80) & 0xFFFF, True))
        assert after.cwnd == 50_000 + 614 and after.last_adj == after.last_dec == nscc_fixed.units_of(end)
    stale = context(P100, qa_end=nscc_fixed.units_of(NOW), trigger_qa=1)
    assert nscc_fixed.on_sack(stale, C100, Sack(NOW + 2 * quarter + 5, 256, 7, 0)).cwnd == 100_000


def test_refresh_changes_nothing_young() -> None:
    """MRC-REQ-325: times younger than 2^30 units, or ahead, stay."""
    s = context(P100)
    assert nscc_fixed.refresh(replace(s, last_dec=s.last_adj), NOW + (1 << 26)) == replace(s, last_dec=s.last_adj)


# --- invariants ---------------------------------------------------------------------------------------------------------------------------


def test_one_decrease_per_round_trip() -> None:
    """N-01, MRC-REQ-334: five marks and five losses within one base_rtt: one multiplicative decrease, five cuts by size."""
    s = context(P100, avg=avg_of(1000), cwnd=200_000)
    both = step(P100, s, Sack(NOW, 256, 0, LONG, True))
    for number in range(1, 5):
        now = NOW + number * 15
        both = step(P100, both.fixed, Sack(now, 256, 0, (now - BASE - 80) & 0xFFFF, True), now)
    assert both.near("cwnd", 100_000)
    for _ in range(5):
        both = step(P100, both.fixed, Loss(4184))
    assert both.near("cwnd", 100_000 - 5 * 4184)


def test_timeout_at_one_packet() -> None:
    """N-03: a timeout with one packet in flight leaves one MTU; the window grows again, and the two sides grow alike."""
    now = NOW
    s = context(P100, cwnd=4096)
    real = float_state(s, now)
    c = nscc_float.Constants(P100)
    for _ in range(3):
        s, real = nscc_fixed.on_loss(s, C100, Loss(4184)), nscc_float.on_loss(real, c, Loss(4184))
        assert s.cwnd == real.cwnd == 4096
    for _ in range(200):
        now += 94
        ev = Sack(now, 4352, 0, (now - 94) & 0xFFFF)
        s, real = nscc_fixed.on_sack(s, C100, ev), nscc_float.on_sack(real, c, ev)
        assert abs(s.cwnd - real.cwnd) <= 0.01 * real.cwnd
    assert s.cwnd > 50_000


@settings(max_examples=200, deadline=None)
@given(RATES, EVENTS, st.integers(0, 1 << 33))
@example(P100, [(0, 256, 0, 90, False, 127, "sack"), (0, 0, 0, 0, False, 0, "sack")], 0)
def test_invariants(p: Parameters, draws: list[tuple[int, int, int, int, bool, int, str]], start: int) -> None:
    """MRC-REQ-334, MRC-REQ-327: MTU <= cwnd <= max_wnd; one decrease per base_rtt; no growth under a penalty; widths hold. Both sides."""
    c, cf = nscc_fixed.Constants(p), nscc_float.Constants(p)
    s, real = nscc_fixed.initial(c, start), nscc_float.initial(cf)
    last: dict[str, int] = {}
    for ev in events_of(draws, start):
        was, real_was = s, real
        s, real = step_fixed(s, c, ev), step_float(real, cf, ev)
        assert p.mtu <= s.cwnd <= p.max_wnd and p.mtu <= real.cwnd <= p.max_wnd
        assert in_widths(s)
        if isinstance(ev, Sack):
            if ev.penalty:
                assert s.cwnd <= was.cwnd and real.cwnd <= real_was.cwnd
            for side, decreased, base in (("fixed", s.last_dec != was.last_dec, s.base * 8), ("float", real.last_dec != real_was.last_dec, real.base)):
                if decreased:
                    assert side not in last or (ev.now - last[side]) * 128 > base
                    last[side] = ev.now
        else:
            assert s.last_dec == was.last_dec and real.last_dec == real_was.last_dec
            assert s.cwnd <= was.cwnd or s.ignored == 0  # only quick adapt may raise it


STATES = st.fixed_dictionaries({
    "cwnd": st.integers(4096, 225_000), "inc": st.integers(0, 1 << 34), "fi_count": st.integers(0, 300_000), "fast": st.integers(0, 1),
    "avg": st.integers(0, 1 << 21), "received": st.integers(0, 40_000), "achieved": st.integers(0, 200_000),
    "ignored": st.integers(0, 300_000), "to_ignore": st.integers(-500, 300_000), "trigger_qa": st.integers(0, 1),
    "qa_end": st.integers(-4000, 4000).map(lambda d: (nscc_fixed.units_of(NOW) + d) % (1 << 32)), "qa_armed": st.integers(0, 1),
    "last_adj": st.integers(0, 4000).map(lambda d: nscc_fixed.units_of(NOW) - d),
    "last_dec": st.integers(0, 4000).map(lambda d: nscc_fixed.units_of(NOW) - d),
})  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(STATES, Draw)
def test_one_step_from_any_state(state: dict[str, int], draw: tuple[int, int, int, int, bool, int, str]) -> None:
    """MRC-REQ-333: from the same state the changes of cwnd differ by at most 1 % of the change, or 64 bytes."""
    ev = events_of([(0, *draw[1:])], NOW)[0]
    s = context(P100, **state)
    assert step_excess(s, (C100, nscc_float.Constants(P100)), NOW, ev) <= 1
