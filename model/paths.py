"""Spray: which plane and which EV carries the next packet. Selection (:func:`select`) changes nothing; :func:`commit` applies it.

Rules: docs/spec-paths.md (MRC-REQ-130 ...), from facts 5 and docs/architecture.md, "Selection rule". State and transitions of EVs are in
:mod:`model.path_events` and importable from here.
"""

from __future__ import annotations

from typing import NamedTuple

from .path_events import (
    EvEntry,
    Path,
    PlaneRow,
    add_credit,
    allow,
    count_serving,
    deny,
    health,
    make_path,
    match,
    matched_since,
    probe_answer,
    set_health,
    to_bad,
    to_skip,
)
from .spec import LFSR_TAPS

__all__ = [
    "EvEntry", "Path", "PlaneRow", "Selection", "add_credit", "allow", "commit", "count_serving", "deny", "first_in_scan", "health",
    "lfsr_step", "make_path", "match", "matched_since", "probe_answer", "select", "set_health", "to_bad", "to_skip", "usable_mask",
]  # fmt: skip


class Selection(NamedTuple):
    """A choice of :func:`select`. ``evi`` = plane x evs + index; ``restored``: EV index that becomes GOOD after this packet, -1 = none."""

    plane: int
    evi: int
    fallback: int
    position: int  # in the rotation of the plane
    r: int  # of the plane, after the packet
    lfsr: int  # after the packet
    restored: int


def lfsr_step(value: int) -> int:
    """One step of the 16-bit Fibonacci LFSR, right shift, x^16 + x^14 + x^13 + x^11 + 1 (MRC-REQ-137)."""
    bit = 0
    for tap in LFSR_TAPS:
        bit ^= value >> tap
    return value >> 1 | (bit & 1) << 15


def first_in_scan(bits: int, ptr: int, r: int, r2: int, evs: int) -> tuple[int, int, bool]:
    """First EV of ``bits`` (not 0) in the order of a scan: positions ptr..evs-1 with ``r``, then 0..evs-1 with ``r2``.

    Returns position, index inside the plane, and whether the second pass was needed (MRC-REQ-136).
    """
    for i in range(ptr, evs):
        if bits >> (i ^ r) & 1:
            return i, i ^ r, False
    for i in range(evs):
        if bits >> (i ^ r2) & 1:
            return i, i ^ r2, True
    raise ValueError("an empty set of EVs has no first one")


def usable_mask(path: Path, up: int, evi: int) -> int | None:
    """``evi`` as the masked EV of a retransmission, or None when no other ACTIVE, not DENIED EV lies on a plane that is up
    (MRC-REQ-142)."""
    evs = path.evs
    for n, row in enumerate(path.planes):
        if up >> n & 1:
            others = row.active & (row.good | row.skip | row.bad)
            if evi // evs == n:
                others &= ~(1 << evi % evs)
            if others:
                return evi
    return None


def select(path: Path, up: int, room: int, need_credit: bool, masked: int | None = None, in_order: bool = False) -> Selection | None:
    """Plane and EV of the next packet, or None: wait (MRC-REQ-133 to 141).

    ``up``, ``room``: planes whose port is up / can take a frame. ``need_credit``: new data. ``masked``: EV index left out (see
    :func:`usable_mask`). ``in_order`` = GLOBAL_CONFIG.spray_in_order; the LFSR then still steps at a redraw, only r stays.
    """
    evs, rows, count = path.evs, path.planes, len(path.planes)
    mask_plane, mask_keep = (-1, 0) if masked is None else (masked // evs, ~(1 << masked % evs))
    passed = -1  # first plane passed over that has a SKIP EV to restore
    for step in range(count):
        n = (path.plane_ptr + step) % count
        if not (up & room) >> n & 1:
            continue
        row = rows[n]
        active = row.active & mask_keep if n == mask_plane else row.active
        eligible = active & row.good
        if need_credit:
            eligible &= ~row.full
        if eligible:
            return _take(path, n, eligible, active & row.skip, passed, mask_plane, mask_keep, in_order)
        if passed < 0 and active & row.skip:
            passed = n
    return _fallback(path, up, room, need_credit, mask_plane, mask_keep, in_order)


def _take(path: Path, n: int, eligible: int, skips: int, passed: int, mask_plane: int, mask_keep: int, in_order: bool) -> Selection:
    """The first eligible EV of plane ``n``, with the restore of rule (a) or (b)."""
    evs, row = path.evs, path.planes[n]
    ptr, r = row.ptr, row.r
    drawn = lfsr_step(path.lfsr)
    low = drawn & evs - 1
    r2 = r if in_order else low
    position, index, redrawn = first_in_scan(eligible, ptr, r, r2, evs)
    restored = -1
    if passed >= 0:  # (a)
        other = path.planes[passed]
        waiting = other.active & other.skip
        if passed == mask_plane:
            waiting &= mask_keep
        restored = passed * evs + first_in_scan(waiting, other.ptr, other.r, other.r if in_order else low, evs)[1]
    elif skips:  # (b)
        skip_position, skip_index, skip_redrawn = first_in_scan(skips, ptr, r, r2, evs)
        if (skip_redrawn, skip_position) < (redrawn, position):
            restored = n * evs + skip_index
    return Selection(n, n * evs + index, 0, position, r2 if redrawn else r, drawn if redrawn else path.lfsr, restored)


def _fallback(path: Path, up: int, room: int, need_credit: bool, mask_plane: int, mask_keep: int, in_order: bool) -> Selection | None:
    """Rule 3: only when no ACTIVE GOOD EV is left on any plane that is up, the first SKIP EV, else the first ASSUMED_BAD one."""
    evs, rows, count = path.evs, path.planes, len(path.planes)
    any_skip = 0
    for n, row in enumerate(rows):
        if up >> n & 1:
            active = row.active & mask_keep if n == mask_plane else row.active
            if active & row.good:
                return None
            any_skip |= active & row.skip
    drawn = lfsr_step(path.lfsr)
    for step in range(count):
        n = (path.plane_ptr + step) % count
        if not (up & room) >> n & 1:
            continue
        row = rows[n]
        wanted = (row.skip if any_skip else row.bad) & row.active
        if n == mask_plane:
            wanted &= mask_keep
        if need_credit:
            wanted &= ~row.full
        if wanted:
            r2 = row.r if in_order else drawn & evs - 1
            position, index, redrawn = first_in_scan(wanted, row.ptr, row.r, r2, evs)
            evi = n * evs + index
            return Selection(n, evi, 1, position, r2 if redrawn else row.r, drawn if redrawn else path.lfsr, evi if any_skip else -1)
    return None


def commit(path: Path, choice: Selection) -> None:
    """The pointers, the permutation and the restore of ``choice``."""
    evs = path.evs
    row = path.planes[choice.plane]
    row.ptr = choice.position + 1
    row.r = choice.r
    path.lfsr = choice.lfsr
    path.plane_ptr = (choice.plane + 1) % len(path.planes)
    if choice.restored >= 0:
        row = path.planes[choice.restored // evs]
        bit = 1 << choice.restored % evs
        row.skip &= ~bit
        row.good |= bit
