"""State of one QP's paths and its transitions: EV health and membership, credit, matches and RTT.

A :class:`Path` is the row that ``layouts.path`` describes, an :class:`EvEntry` the rest of one EV. EVs of a QP are numbered plane x evs +
index
inside the plane. Rules: docs/spec-paths.md (MRC-REQ-143 ...), from facts 5. :mod:`model.paths` selects, and offers all of this too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .spec import PROBE_ANSWERS_TO_RECOVER, Health, MFlag


@dataclass(slots=True)
class PlaneRow:
    """EVs of one QP on one plane as bit rows (bit = index inside the plane). Health is one-hot good, skip, bad; none of them = DENIED."""

    active: int = 0
    good: int = 0
    skip: int = 0
    bad: int = 0
    full: int = 0  # credit_used >= path_credit
    ptr: int = 0  # next position of the rotation; evs = wrap at the next scan
    r: int = 0  # position i is EV index i XOR r


@dataclass(slots=True)
class Path:
    """Path row of one QP. ``evs``: EVs per plane, a size of the instance and not state."""

    evs: int
    plane_ptr: int = 0
    lfsr: int = 0
    planes: list[PlaneRow] = field(default_factory=list)


@dataclass(slots=True)
class EvEntry:
    """Dynamic state of one EV (``layouts.ev_entry``) and its configured ``value``. Ticks of 128 ns."""

    value: int = 0
    credit: int = 0  # OUTSTANDING records that name the EV
    match_valid: int = 0
    match_tick: int = 0  # latest send tick that was acknowledged
    match_time: int = 0  # 32-bit tick of the step that saw it
    probe_ok: int = 0
    rtt_valid: int = 0
    rtt_last: int = 0
    rtt_min: int = 0


def make_path(planes: int, evs: int) -> Path:
    """A path row after RESET: every EV BACKUP and DENIED, pointers 0."""
    return Path(evs, planes=[PlaneRow() for _ in range(planes)])


# --- health and membership ---------------------------------------------------------------------------------------------------------
def health(path: Path, evi: int) -> Health:
    """Health of an EV."""
    row, index = path.planes[evi // path.evs], evi % path.evs
    if row.good >> index & 1:
        return Health.GOOD
    if row.skip >> index & 1:
        return Health.SKIP
    return Health.ASSUMED_BAD if row.bad >> index & 1 else Health.DENIED


def set_health(row: PlaneRow, bit: int, value: Health) -> None:
    """Health of the EV with bit mask ``bit`` of ``row``; membership stays."""
    row.good = row.good | bit if value == Health.GOOD else row.good & ~bit
    row.skip = row.skip | bit if value == Health.SKIP else row.skip & ~bit
    row.bad = row.bad | bit if value == Health.ASSUMED_BAD else row.bad & ~bit


def count_serving(path: Path) -> int:
    """ACTIVE EVs in GOOD or SKIP of the whole QP: what ev_min_active counts."""
    return sum((row.active & (row.good | row.skip)).bit_count() for row in path.planes)


def to_skip(path: Path, evi: int) -> None:
    """SACK M=SKIP_ONCE or NACK TRIMMED: an ACTIVE GOOD EV becomes SKIP. A BACKUP stays as it is (MRC-REQ-146)."""
    row, bit = path.planes[evi // path.evs], 1 << evi % path.evs
    if row.active & row.good & bit:
        row.good &= ~bit
        row.skip |= bit


def to_bad(path: Path, evi: int, ev_min_active: int) -> bool:
    """GOOD or SKIP -> ASSUMED_BAD with demotion; True when the EV is ASSUMED_BAD now and was not before (MRC-REQ-147, 148).

    An EV that is ASSUMED_BAD or DENIED already stays as it is.
    """
    row, bit = path.planes[evi // path.evs], 1 << evi % path.evs
    if not (row.good | row.skip) & bit:
        return False
    if row.active & bit and not _has_spare(row, bit) and count_serving(path) <= ev_min_active:
        set_health(row, bit, Health.SKIP)
        return False
    set_health(row, bit, Health.ASSUMED_BAD)
    _demote(row, bit)
    return True


def deny(path: Path, evi: int) -> None:
    """Controller: any health -> DENIED with demotion, without regard to ev_min_active (MRC-REQ-149)."""
    row, bit = path.planes[evi // path.evs], 1 << evi % path.evs
    if (row.good | row.skip | row.bad) & bit:
        set_health(row, bit, Health.DENIED)
        _demote(row, bit)


def allow(path: Path, evi: int) -> None:
    """Controller: DENIED -> GOOD, a BACKUP with promotion; any other health stays as it is (MRC-REQ-149)."""
    row, bit = path.planes[evi // path.evs], 1 << evi % path.evs
    if not (row.good | row.skip | row.bad) & bit:
        set_health(row, bit, Health.GOOD)
        _promote(row, bit)


def probe_answer(path: Path, entry: EvEntry, evi: int, mflag: int) -> None:
    """A probe answer of an ASSUMED_BAD EV: three in a row without ALWAYS_SKIP bring it back (MRC-REQ-150). Else nothing changes."""
    row, bit = path.planes[evi // path.evs], 1 << evi % path.evs
    if not row.bad & bit:
        return
    if mflag == MFlag.ALWAYS_SKIP:
        entry.probe_ok = 0
    elif mflag in (MFlag.NONE, MFlag.SKIP_ONCE):
        entry.probe_ok += 1
        if entry.probe_ok == PROBE_ANSWERS_TO_RECOVER:
            entry.probe_ok = 0
            if row.active & bit and mflag == MFlag.SKIP_ONCE:
                set_health(row, bit, Health.SKIP)
            else:
                set_health(row, bit, Health.GOOD)
                _promote(row, bit)


def _lowest(bits: int) -> int:
    return bits & -bits


def _has_spare(row: PlaneRow, bit: int) -> bool:
    return bool(row.good & ~row.active & ~bit)


def _demote(row: PlaneRow, bit: int) -> None:
    """An ACTIVE EV swaps membership with the first GOOD BACKUP of its plane, if there is one (MRC-REQ-148)."""
    spare = _lowest(row.good & ~row.active & ~bit)
    if row.active & bit and spare:
        row.active ^= bit | spare


def _promote(row: PlaneRow, bit: int) -> None:
    """A BACKUP that became GOOD swaps with the first ACTIVE ASSUMED_BAD, else ACTIVE DENIED EV of its plane (MRC-REQ-151)."""
    if not row.active & bit:
        broken = _lowest(row.active & row.bad) or _lowest(row.active & ~(row.good | row.skip | row.bad))
        if broken:
            row.active ^= bit | broken


# --- credit and matches ------------------------------------------------------------------------------------------------------------
def add_credit(path: Path, entry: EvEntry, evi: int, delta: int, path_credit: int) -> int:
    """credit_used += ``delta``, and the full bit follows; returns credit_used (MRC-REQ-144)."""
    entry.credit += delta
    row, bit = path.planes[evi // path.evs], 1 << evi % path.evs
    if entry.credit >= path_credit:
        row.full |= bit
    else:
        row.full &= ~bit
    return entry.credit


def match(entry: EvEntry, echo: int, now: int) -> None:
    """A matching acknowledgement of a packet sent at 16-bit tick ``echo``: latest matched tick, and the RTT (MRC-REQ-152, 153)."""
    if not entry.match_valid or 0 < (echo - entry.match_tick & 0xFFFF) < 0x8000:
        entry.match_tick = echo
    entry.match_valid = 1
    entry.match_time = now & 0xFFFFFFFF
    rtt = now - echo & 0xFFFF
    if rtt < 0x8000:
        entry.rtt_last = rtt
        entry.rtt_min = min(entry.rtt_min, rtt) if entry.rtt_valid else rtt
        entry.rtt_valid = 1


def matched_since(entry: EvEntry, tick: int) -> bool:
    """Whether a packet sent after ``tick`` on this EV was acknowledged: its loss is then plain, else proved (MRC-REQ-154)."""
    return bool(entry.match_valid) and 0 < (entry.match_tick - tick & 0xFFFF) < 0x8000
