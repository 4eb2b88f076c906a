"""Spray selection and EV transitions on hand-made rows. Requirements MRC-REQ-130 to MRC-REQ-156."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import paths
from model.paths import EvEntry, Path, PlaneRow, commit, select
from model.spec import Health, MFlag


def row(evs: int = 4, **fields: int) -> PlaneRow:
    """All EVs ACTIVE and GOOD, changed by ``fields``."""
    full = (1 << evs) - 1
    values = {"active": full, "good": full} | fields
    return PlaneRow(**values)


def path(*rows: PlaneRow, evs: int = 4, lfsr: int = 0xACE1, plane_ptr: int = 0) -> Path:
    return Path(evs, plane_ptr, lfsr, list(rows))


def take(p: Path, count: int, need_credit: bool = True, **options: bool) -> list[int]:
    """EV indices of ``count`` packets."""
    found = []
    for _ in range(count):
        choice = select(p, 3, 3, need_credit, **options)
        assert choice is not None
        commit(p, choice)
        found.append(choice.evi)
    return found


def test_planes_rotate_and_evs_rotate_inside() -> None:
    """MRC-REQ-130, MRC-REQ-133, MRC-REQ-135: planes in turn, each from its own pointer; evi = plane x evs + index."""
    p = path(row(), row())
    assert take(p, 8, in_order=True) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert (p.plane_ptr, p.planes[0].ptr, p.planes[1].ptr) == (0, 4, 4)
    assert take(p, 2, in_order=True) == [0, 4]


def test_permutation_and_redraw() -> None:
    """MRC-REQ-136, MRC-REQ-137: position i is EV i XOR r; at the wrap the LFSR steps once and r is its low bits, in the chosen plane
    only."""
    p = path(row(r=2, ptr=1))
    assert take(p, 3) == [3, 0, 1]  # positions 1, 2, 3
    drawn = paths.lfsr_step(0xACE1)
    assert p.lfsr == 0xACE1 and p.planes[0].ptr == 4
    assert take(p, 4) == [i ^ drawn & 3 for i in range(4)]
    assert p.lfsr == drawn and p.planes[0].r == drawn & 3
    two = path(row(ptr=4), row(ptr=4))
    take(two, 1)
    assert two.planes[1].r == 0 and two.planes[1].ptr == 4


def test_lfsr_against_bit_list() -> None:
    """MRC-REQ-137: x^16 + x^14 + x^13 + x^11 + 1, period 65535, from the textbook's definition on a list of bits."""
    bits = [0xACE1 >> i & 1 for i in range(16)]
    value = 0xACE1
    for _ in range(100):
        bits = [*bits[1:], bits[0] ^ bits[2] ^ bits[3] ^ bits[5]]
        value = paths.lfsr_step(value)
        assert value == sum(b << i for i, b in enumerate(bits))
    seen, x = 1, paths.lfsr_step(1)
    while x != 1:
        seen, x = seen + 1, paths.lfsr_step(x)
    assert seen == 65535


def test_in_order_keeps_r() -> None:
    """MRC-REQ-138: spray_in_order keeps r at a redraw; the LFSR still steps."""
    p = path(row(r=1, ptr=4))
    assert take(p, 2, in_order=True) == [1, 0]
    assert p.planes[0].r == 1 and p.lfsr == paths.lfsr_step(0xACE1)


def test_selection_changes_nothing() -> None:
    """MRC-REQ-133: a hint that is not committed leaves no trace."""
    p = path(row(skip=1, good=14), row())
    before = repr(p)
    select(p, 3, 3, True)
    assert repr(p) == before


def test_eligible_needs_credit_port_and_room() -> None:
    """MRC-REQ-132, MRC-REQ-143, MRC-REQ-145: credit for new data only; a port that is down or busy is passed over; nothing: wait."""
    p = path(row(full=15), row())
    assert select(p, 3, 3, True).plane == 1  # type: ignore[union-attr]
    assert select(p, 3, 3, False).plane == 0  # type: ignore[union-attr]
    assert select(p, 2, 3, False).plane == 1  # type: ignore[union-attr]
    assert select(p, 3, 2, False).plane == 1  # type: ignore[union-attr]
    p.planes[1].full = 15
    assert select(p, 3, 3, True) is None, "GOOD EVs without credit: wait, no fallback"
    assert select(path(row(), row()), 3, 0, True) is None
    assert select(path(row(), row()), 0, 3, True) is None


def test_backup_and_denied_are_never_used() -> None:
    """MRC-REQ-131, MRC-REQ-132: only ACTIVE EVs; DENIED not even as fallback."""
    assert select(path(row(active=0), row(active=0)), 3, 3, False) is None
    assert select(path(row(good=0), row(good=0)), 3, 3, False) is None
    assert take(path(row(active=4), row(active=4)), 4, in_order=True) == [2, 6, 2, 6]


def test_restore_b_in_chosen_plane() -> None:
    """MRC-REQ-140: the first SKIP passed before the winner, both passes counted, becomes GOOD after this packet; one only."""
    p = path(row(good=0b1000, skip=0b0111))
    choice = select(p, 1, 1, True, in_order=True)
    assert choice is not None and (choice.evi, choice.restored) == (3, 0)
    commit(p, choice)
    assert p.planes[0].good == 0b1001 and p.planes[0].skip == 0b0110
    p = path(row(good=0b0010, skip=0b1001, ptr=2))
    choice = select(p, 1, 1, True, in_order=True)
    assert choice is not None and (choice.evi, choice.restored) == (1, 3), "first pass: positions 2, 3; winner at 1 in the second"
    p = path(row(good=0b0010, skip=0b1000))
    assert select(p, 1, 1, True, in_order=True).restored == -1  # type: ignore[union-attr]


def test_restore_a_in_plane_passed_over() -> None:
    """MRC-REQ-139: a plane that is up and free but has nothing eligible gets its next SKIP EV back; (a) comes before (b)."""
    p = path(row(good=0, skip=0b0110, ptr=2), row(good=0b1000, skip=0b0001))
    choice = select(p, 3, 3, True, in_order=True)
    assert choice is not None and (choice.evi, choice.restored) == (7, 2)
    commit(p, choice)
    assert p.planes[0].ptr == 2, "nothing else of the passed plane is committed"
    assert select(p, 2, 3, True, in_order=True).restored == 4  # type: ignore[union-attr]  # port down: (b) of the chosen plane
    assert select(path(row(good=0, skip=6), row(), plane_ptr=1), 3, 3, True).restored == -1  # type: ignore[union-attr]


def test_restore_a_takes_the_first_plane_passed_over() -> None:
    """MRC-REQ-139: of two planes passed over, the first in rotation; one EV only."""
    p = path(row(good=0, skip=8), row(good=0, skip=2), row(), row(), plane_ptr=0)
    choice = select(p, 15, 15, True)
    assert choice is not None and (choice.plane, choice.restored) == (2, 3)


def test_fallback_skip_then_bad() -> None:
    """MRC-REQ-141: no ACTIVE GOOD EV on a plane that is up: the first SKIP (it becomes GOOD), else ASSUMED_BAD (it stays), never DENIED."""
    p = path(row(good=0, skip=0b0100, bad=0b0011), row(good=0, bad=0b1111))
    choice = select(p, 3, 3, True, in_order=True)
    assert choice is not None and (choice.evi, choice.fallback, choice.restored) == (2, 1, 2)
    commit(p, choice)
    assert p.planes[0].good == 0b0100
    assert select(p, 3, 2, True) is None, "a GOOD EV exists, though its port is busy"
    assert select(p, 2, 3, True, in_order=True).evi == 4  # type: ignore[union-attr]
    bad = path(row(good=0, bad=0b0010), row(good=0))
    choice = select(bad, 3, 3, False)
    assert choice is not None and (choice.evi, choice.fallback, choice.restored) == (1, 1, -1)
    commit(bad, choice)
    assert bad.planes[0].bad == 0b0010 and bad.planes[0].ptr in (2, 1 + (1 ^ bad.planes[0].r))


def test_fallback_waits_for_busy_skip() -> None:
    """MRC-REQ-141: ASSUMED_BAD only when no ACTIVE SKIP exists on a plane that is up, busy or without credit included."""
    p = path(row(good=0, skip=1), row(good=0, bad=15))
    assert select(p, 3, 2, True) is None
    assert select(p, 2, 2, True).evi == 4 + (0 ^ p.planes[1].r)  # type: ignore[union-attr]
    full = path(row(good=0, skip=1, full=1), row(good=0, bad=15))
    assert select(full, 3, 3, True) is None
    assert select(full, 3, 3, False).evi == 0  # type: ignore[union-attr]


def test_masked_ev_of_a_retransmission() -> None:
    """MRC-REQ-142: the lost copy's EV is left out, restore and fallback included, unless nothing else is usable on a plane that is up."""
    p = path(row(good=0b0001, skip=0b0010), row(good=0))
    assert paths.usable_mask(p, 3, 0) == 0
    choice = select(p, 3, 3, False, 0)
    assert choice is not None and (choice.evi, choice.fallback) == (1, 1), "without the masked EV no GOOD one is left: fallback"
    alone = path(row(good=0b0001, active=0b0001), row(good=0))
    assert paths.usable_mask(alone, 3, 0) is None
    elsewhere = path(row(good=0b0001, active=0b0001), row(good=0, bad=8))
    assert paths.usable_mask(elsewhere, 3, 0) == 0
    assert paths.usable_mask(elsewhere, 1, 0) is None, "the other EV's plane is down"
    assert select(path(row(good=0, skip=1), row(good=8)), 3, 3, False, 0).restored == -1  # type: ignore[union-attr]


def test_demotion_swaps_inside_the_plane() -> None:
    """MRC-REQ-147, MRC-REQ-148: an ACTIVE EV that becomes ASSUMED_BAD gives its place to the first GOOD BACKUP of its plane."""
    p = path(row(active=0b0011, good=0b1011), row())
    assert paths.to_bad(p, 1, 2)
    assert (p.planes[0].active, p.planes[0].bad, p.planes[0].good) == (0b1001, 0b0010, 0b1001)
    assert not paths.to_bad(p, 1, 2), "it is ASSUMED_BAD already"


def test_demotion_respects_ev_min_active() -> None:
    """MRC-REQ-148: no BACKUP and ACTIVE GOOD/SKIP would fall below ev_min_active: SKIP instead; above it: ASSUMED_BAD and ACTIVE."""
    p = path(row(active=0b0011, good=0b0011), row(active=1, good=1))
    assert paths.to_bad(p, 0, 2) and p.planes[0].active == 0b0011
    assert not paths.to_bad(p, 1, 2)
    assert paths.health(p, 1) == Health.SKIP
    p.planes[0].active = 0b0001
    assert paths.to_bad(p, 1, 2), "a BACKUP changes health whatever ev_min_active says"


def test_skip_only_active_good() -> None:
    """MRC-REQ-146: a BACKUP is never SKIP; ASSUMED_BAD and DENIED do not become SKIP by data feedback."""
    p = path(row(active=0b0111, good=0b1001, bad=0b0010))
    for evi in range(4):
        paths.to_skip(p, evi)
    assert p.planes[0].skip == 0b0001 and p.planes[0].good == 0b1000 and p.planes[0].bad == 0b0010


def test_controller() -> None:
    """MRC-REQ-131, MRC-REQ-149, MRC-REQ-151: DENIED from any health with demotion and without ev_min_active, back to GOOD with
    promotion."""
    p = path(row(active=0b0001, good=0b0011))
    paths.deny(p, 0)
    assert paths.health(p, 0) == Health.DENIED and p.planes[0].active == 0b0010
    paths.deny(p, 1)
    assert p.planes[0].active == 0b0010, "no GOOD BACKUP: it stays ACTIVE"
    paths.allow(p, 0)
    assert p.planes[0].active == 0b0001 and paths.health(p, 0) == Health.GOOD, "takes the place of the ACTIVE DENIED EV"
    p.planes[0].bad, p.planes[0].good = 0b0100, 0b0001
    paths.allow(p, 2)
    assert paths.health(p, 2) == Health.ASSUMED_BAD, "the controller brings back DENIED EVs only"


@pytest.mark.parametrize(("flag", "want"), [(MFlag.NONE, Health.GOOD), (MFlag.SKIP_ONCE, Health.SKIP)])
def test_probe_answers_recover(flag: MFlag, want: Health) -> None:
    """MRC-REQ-150: three answers in a row; ALWAYS_SKIP starts again; the last flag decides."""
    p, entry = path(row(good=0b1110, bad=1)), EvEntry()
    for answer in (MFlag.NONE, MFlag.NONE, MFlag.ALWAYS_SKIP, MFlag.NONE, MFlag.SKIP_ONCE):
        paths.probe_answer(p, entry, 0, answer)
        assert paths.health(p, 0) == Health.ASSUMED_BAD
    paths.probe_answer(p, entry, 0, flag)
    assert paths.health(p, 0) == want and entry.probe_ok == 0


def test_recovered_backup_is_promoted() -> None:
    """MRC-REQ-150, MRC-REQ-151: a BACKUP returns as GOOD (never SKIP) and takes the place of the first ACTIVE ASSUMED_BAD EV."""
    p, entry = path(row(active=0b0110, good=0, bad=0b0101, skip=0)), EvEntry(probe_ok=2)
    paths.probe_answer(p, entry, 0, MFlag.SKIP_ONCE)
    assert paths.health(p, 0) == Health.GOOD and p.planes[0].active == 0b0011, "EV 2 is ASSUMED_BAD, EV 1 DENIED: bad first"


def test_credit_and_full_bit() -> None:
    """MRC-REQ-144: full from path_credit on."""
    p, entry = path(row()), EvEntry()
    for _ in range(3):
        paths.add_credit(p, entry, 2, 1, 3)
    assert p.planes[0].full == 0b0100
    assert paths.add_credit(p, entry, 2, -1, 3) == 2 and p.planes[0].full == 0


def test_match_and_rtt() -> None:
    """MRC-REQ-152, MRC-REQ-153, MRC-REQ-154: the latest matched tick in serial order, last and minimum RTT, proved loss."""
    entry = EvEntry()
    assert not paths.matched_since(entry, 5)
    paths.match(entry, 0xFFF0, 0x1_0010)
    assert (entry.rtt_last, entry.rtt_min, entry.rtt_valid) == (0x20, 0x20, 1)
    paths.match(entry, 0x0005, 0x1_0035)
    assert (entry.match_tick, entry.rtt_last, entry.rtt_min, entry.match_time) == (5, 0x30, 0x20, 0x1_0035)
    paths.match(entry, 0xFFF8, 0x1_0036)
    assert entry.match_tick == 5, "an older packet's acknowledgement does not move it back"
    assert paths.matched_since(entry, 4) and not paths.matched_since(entry, 5) and paths.matched_since(entry, 0xFFFF)


def slow_select(p: Path, up: int, room: int, need_credit: bool, masked: int | None) -> tuple[int, int, set[int]] | None:
    """The rule again, written from the text on explicit sets: (plane, EV, EVs that may be the restored one)."""
    count, evs = len(p.planes), p.evs

    def evis(n: int, health: str) -> set[int]:
        r = p.planes[n]
        return {n * evs + i for i in range(evs) if r.active >> i & 1 and getattr(r, health) >> i & 1} - {masked}

    def free(evi: int) -> bool:
        return not need_credit or not p.planes[evi // evs].full >> evi % evs & 1

    def order(n: int) -> list[int]:
        r = p.planes[n]
        low = paths.lfsr_step(p.lfsr) % evs
        return [n * evs + (i ^ r.r) for i in range(r.ptr, evs)] + [n * evs + (i ^ low) for i in range(evs)]

    turn = [(p.plane_ptr + i) % count for i in range(count)]
    usable = [n for n in turn if up >> n & 1 and room >> n & 1]
    eligible = {n: {e for e in evis(n, "good") if free(e)} for n in usable}
    chosen = next((n for n in usable if eligible[n]), None)
    if chosen is not None:
        scan = order(chosen)
        at = next(i for i, e in enumerate(scan) if e in eligible[chosen])
        for n in usable[: usable.index(chosen)]:
            if evis(n, "skip"):
                return chosen, scan[at], {next(e for e in order(n) if e in evis(n, "skip"))}
        return chosen, scan[at], {next((e for e in scan[:at] if e in evis(chosen, "skip")), -1)}
    ups = [n for n in range(count) if up >> n & 1]
    if any(evis(n, "good") for n in ups):
        return None
    wanted = "skip" if any(evis(n, "skip") for n in ups) else "bad"
    for n in usable:
        found = next((e for e in order(n) if e in evis(n, wanted) and free(e)), None)
        if found is not None:
            return n, found, {found if wanted == "skip" else -1}
    return None


@given(st.integers(0, 1 << 32))
def test_select_equals_the_text(seed: int) -> None:
    """MRC-REQ-133 to MRC-REQ-143: random rows against a second writing of the rule; invariants 1 and 3."""
    rng = random.Random(seed)
    evs = rng.choice((1, 2, 4, 8))
    rows = []
    for _ in range(rng.choice((1, 2, 4))):
        kinds = [rng.choice("gggsbd") for _ in range(evs)]
        bits = {k: sum(1 << i for i, c in enumerate(kinds) if c == k) for k in "gsb"}
        active, full = rng.getrandbits(evs) | rng.getrandbits(evs), rng.getrandbits(evs) & rng.getrandbits(evs)
        rows.append(PlaneRow(active, bits["g"], bits["s"], bits["b"], full, rng.randint(0, evs), rng.randrange(evs)))
    p = Path(evs, rng.randrange(len(rows)), rng.randint(1, 0xFFFF), rows)
    up, room = rng.getrandbits(len(rows)) | rng.getrandbits(len(rows)), rng.getrandbits(len(rows)) | rng.getrandbits(len(rows))
    credit = rng.random() < 0.5
    masked = rng.choice((None, rng.randrange(evs * len(rows))))
    got = select(p, up, room, credit, masked)
    want = slow_select(p, up, room, credit, masked)
    assert (got is None) == (want is None)
    if got is not None and want is not None:
        assert (got.plane, got.evi) == want[:2] and got.restored in want[2]
        left_out = {masked} if masked is not None else set()
        goods = [n for n, r in enumerate(rows) if up >> n & 1 and {n * evs + i for i in range(evs) if r.active & r.good & 1 << i} - left_out]
        assert got.fallback == (not goods)
        before = sum(r.skip.bit_count() for r in rows)
        commit(p, got)
        assert before - sum(r.skip.bit_count() for r in rows) == (got.restored >= 0)


@given(st.lists(st.tuples(st.sampled_from(["skip", "bad", "deny", "allow", "probe"]), st.integers(0, 7), st.integers(0, 2)), max_size=60))
def test_membership_invariants(events: list[tuple[str, int, int]]) -> None:
    """Invariants 2, 4 and 5: ACTIVE counts per plane never change, DENIED only by the controller, ev_min_active unless the controller
    denies."""
    p = path(row(active=0b0111), row(active=0b0111))
    entries = [EvEntry() for _ in range(8)]
    denied: set[int] = set()
    for event, evi, flag in events:
        if event == "skip":
            paths.to_skip(p, evi)
        elif event == "bad":
            before = paths.count_serving(p)
            paths.to_bad(p, evi, 2)
            assert paths.count_serving(p) >= min(before, 2)
        elif event == "deny":
            paths.deny(p, evi)
            denied.add(evi)
        elif event == "allow":
            paths.allow(p, evi)
            denied.discard(evi)
        else:
            paths.probe_answer(p, entries[evi], evi, flag)
        assert [r.active.bit_count() for r in p.planes] == [3, 3]
        assert denied == {e for e in range(8) if paths.health(p, e) == Health.DENIED}
        for r in p.planes:
            assert not r.skip & ~r.active
