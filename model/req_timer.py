"""Steps of the requestor that time causes: TIMEOUT, PROBE, EV_AGE."""

from __future__ import annotations

from .config import StepError
from .paths import commit, select
from .req_base import ReqBase
from .req_results import EvAgeOut, ProbeOut, TimeoutOut
from .req_state import HALF32, M24, M32, ProbeSlot, ReqQp, due, expiry_ticks, wire16
from .spec import EV_MATCH_MAX_AGE, WcStatus

TAIL, EV = 0, 1  # probe slots
AGE_FROM = EV_MATCH_MAX_AGE >> 1  # an EV's last match is forgotten from this age on, and before EV_MATCH_MAX_AGE


class TimerSteps(ReqBase):
    """TIMEOUT, PROBE, EV_AGE."""

    def timeout(self, qp: int, now: int) -> TimeoutOut:
        """The timer of the oldest unacknowledged PSN expired (MRC-REQ-090 to 094)."""
        q = self._qp(qp, now, "TIMEOUT")
        if not q.timer_on or not due(now, q.timer_deadline):
            why = f"the deadline {q.timer_deadline} is after {now & M32}" if q.timer_on else "the timer is off"
            raise StepError(f"TIMEOUT, QP {qp}: {why}")
        q.expiry = min(q.expiry + 1, 255)
        q.retry = min(q.retry + 1, 255)
        if self.limit_reached(q):
            self.fail(q, WcStatus.RETRY_EXCEEDED)
            return TimeoutOut()
        result = TimeoutOut()
        head = (q.unack_psn + 1) & M24
        bit = q.bit(head)
        if head == q.next_psn or q.sacked & bit:
            q.want_probe = 1
        elif q.out & bit:
            evi = q.records[head & q.window - 1].evi
            result = TimeoutOut(1, evi, self.lose(q, head))
            self.make_bad(q, evi, now)
            q.head_free = 1
        elif q.lost & bit:
            q.hold = 0
            q.head_free = 1
        else:  # retired: a SACK reported it before an ACK moved unack_psn
            q.want_probe = 1
        q.timer_deadline = (now + expiry_ticks(q.config, q.expiry + 1)) & M32
        return result

    def tail_probe_due(self, q: ReqQp, now: int) -> bool:
        """Whether a tail probe is wanted, or feedback has been missing for probe_time (MRC-REQ-095)."""
        return bool(q.want_probe) or bool(q.probe_on and (now - q.probe_ref - self.glob.probe_time) & M32 < HALF32)

    def _next_bad(self, q: ReqQp, room: int) -> int | None:
        """EV of the next EV probe: -1: no EV is ASSUMED_BAD; None: none of them lies on a plane that is up and has room."""
        evs, total = q.path.evs, self.sizes.total_evs
        if not any(row.bad for row in q.path.planes):
            return -1
        for step in range(1, total + 1):
            evi = (q.bad_probe_evi + step) % total
            plane = evi // evs
            if q.path.planes[plane].bad >> evi % evs & 1 and (self.up & room) >> plane & 1:
                return evi
        return None

    def probe_possible(self, qp: int, slot: int, now: int, room: int) -> bool:
        """Whether a PROBE step of that slot may be taken now."""
        q = self.qp[qp]
        if slot == EV:
            return bool(q.bad_probe_on) and due(now, q.bad_probe_at) and self._next_bad(q, room) is not None
        return self.tail_probe_due(q, now) and select(q.path, self.up, room, False, None, bool(self.glob.spray_in_order)) is not None

    def probe(self, qp: int, slot: int, now: int, room: int) -> ProbeOut:
        """A reliability probe: slot 0 for the tail of the QP, slot 1 for an ASSUMED_BAD EV (MRC-REQ-095 to 099)."""
        q = self._qp(qp, now, "PROBE")
        if slot == TAIL:
            if not self.tail_probe_due(q, now):
                raise StepError(f"PROBE, QP {qp}: no tail probe is wanted and feedback has not been missing for probe_time")
            choice = select(q.path, self.up, room, False, None, bool(self.glob.spray_in_order))
            if choice is None:
                raise StepError(f"PROBE, QP {qp}: no EV may be used now, the probe must wait")
            commit(q.path, choice)
            q.want_probe = 0
            q.probe_ref = now & M32
            number, evi = q.probe_count, choice.evi
            kept = q.tail_slot
        elif slot == EV:
            if not q.bad_probe_on or not due(now, q.bad_probe_at):
                raise StepError(f"PROBE, QP {qp}: no EV probe is due")
            found = self._next_bad(q, room)
            if found is None:
                raise StepError(f"PROBE, QP {qp}: no ASSUMED_BAD EV lies on a plane that is up and has room")
            if found < 0:
                q.bad_probe_on = 0
                return ProbeOut(EV)
            kept = q.ev_slot
            if kept.valid:
                q.ev[kept.evi].probe_ok = 0
            q.bad_probe_at = (now + expiry_ticks(q.config, 1)) & M32
            q.bad_probe_evi = evi = found
            number = 0x8000 | q.probe_count
        else:
            raise StepError(f"PROBE, QP {qp}: slot {slot}; 0 is the tail's, 1 the EV's")
        tick = wire16(now)
        q.probe_count = (q.probe_count + 1) & 0x7FFF
        _fill(kept, number, evi, tick)
        q.tx_pending += 1
        return ProbeOut(slot, number, evi // q.path.evs, evi, q.ev[evi].value, tick)

    def ev_age(self, qp: int, evi: int, now: int) -> EvAgeOut:
        """Forgets the last match of an EV before its 16-bit tick becomes ambiguous (MRC-REQ-156)."""
        q = self.qp[qp]
        self.now = now
        entry = q.ev[evi]
        if not entry.match_valid or (now - entry.match_time) & M32 < AGE_FROM:
            raise StepError(f"EV_AGE, QP {qp}: EV {evi} has no match older than {AGE_FROM} ticks")
        entry.match_valid = 0
        q.matched &= ~(1 << evi)
        return EvAgeOut(evi)

    def old_matches(self, qp: int, now: int) -> list[int]:
        """EVs whose EV_AGE step is due."""
        q = self.qp[qp]
        if not q.matched or now < q.age_at:
            return []
        found = []
        youngest_wait = AGE_FROM
        for evi, entry in enumerate(q.ev):
            if entry.match_valid:
                age = (now - entry.match_time) & M32
                if age >= AGE_FROM:
                    found.append(evi)
                else:
                    youngest_wait = min(youngest_wait, AGE_FROM - age)
        if not found:
            q.age_at = now + youngest_wait
        return found


def _fill(slot: ProbeSlot, number: int, evi: int, tick: int) -> None:
    slot.valid, slot.id, slot.evi, slot.tick = 1, number, evi, tick
