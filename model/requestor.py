"""The requestor of one NIC: every step of its side of docs/architecture.md, and what is due.

One method per kind of step, on plain integers of wire width. A method changes the state of one QP, returns the outputs of the commit record
(:mod:`model.req_results`), and raises :class:`StepError` when a free choice that it was given is illegal; the QP's state is then undefined.
``now`` is the tick of the step, of any size; what the state keeps of it is masked as in the hardware.

Requirements: docs/spec-requestor.md (MRC-REQ-050 to 099) and docs/spec-paths.md (MRC-REQ-130 to 156).
"""

from __future__ import annotations

from typing import NamedTuple

from .config import EvConfig, GlobalConfig, QpConfig, Region, Sizes, StepError, WorkRequest
from .req_control import ControlSteps
from .req_feedback import FeedbackSteps
from .req_results import CompleteOut
from .req_send import SendSteps
from .req_state import CTX_FIELDS, M32, NOT_DROPPED, FeedbackFields, ReqQp
from .req_timer import EV, TAIL, TimerSteps
from .req_window import WindowSteps
from .spec import Drop, Kind, QpState

__all__ = [
    "CTX_FIELDS", "NOT_DROPPED", "Due", "EvConfig", "FeedbackFields", "GlobalConfig", "QpConfig", "Region", "ReqQp", "Requestor", "Sizes",
    "StepError", "WorkRequest",
]  # fmt: skip


class Due(NamedTuple):
    """A step that may be taken now. ``arg``: RETIRE, JUDGE: the PSN; PROBE: the slot; EV_AGE: the EV; QP_ERROR: the cause; COMPLETE: the
    message."""

    kind: Kind
    arg: int = 0


class Requestor(ControlSteps, SendSteps, FeedbackSteps, WindowSteps, TimerSteps):
    """All QPs of one NIC as requestor.

    ``glob``: parameters of the NIC, ``qp[i]``: state of QP index i (:class:`ReqQp`), ``up``: planes whose port is up, ``drops[cause]``:
    feedback dropped or ignored, by ``spec.Drop``.
    """

    def drop_counts(self) -> dict[Drop, int]:
        """The counters of ``drops`` that are not zero."""
        return {cause: self.drops[cause] for cause in Drop if self.drops[cause]}

    def pending(self, qp: int, now: int, room: int | None = None) -> list[Due]:
        """Steps of a QP that are due at ``now``, in the order of priority of architecture.md (EV_AGE last).

        ``room``: planes that can take a frame, by default all. A step taken can make later ones of the list illegal: ask again after it,
        except that the RETIREs of one list, and after them its JUDGEs, may be taken one after the other. JUDGEs of a row whose PSNs await
        RETIRE are not listed
        yet. An empty list, and :meth:`next_deadline` None, with something unfinished would be a hang.
        """
        q = self.qp[qp]
        found: list[Due] = []
        if q.fault is not None:
            found.append(Due(Kind.QP_ERROR, q.fault[0]))
        if q.msg_head != q.msg_done:
            count = (q.msg_done - q.msg_head) & 0xFFFF
            found += [Due(Kind.COMPLETE, (q.msg_head + i) & 0xFFFF) for i in range(count)]
        if q.state == QpState.ERROR:
            found += [Due(Kind.COMPLETE, (q.msg_done + i) & 0xFFFF) for i in range((q.msg_tail - q.msg_done) & 0xFFFF)]
        elif q.state == QpState.RTS and q.fault is None:
            retiring = q.retire_bits()
            if retiring:
                found += [Due(Kind.RETIRE, psn) for psn in q.psns(retiring)]
            if q.judge_rows:
                found += [Due(Kind.JUDGE, psn) for psn in self.judge_list(qp)]
            room = self.up if room is None else room
            if q.timer_on and (now - q.timer_deadline) & M32 < 1 << 31:
                found.append(Due(Kind.TIMEOUT))
            if self.probe_possible(qp, TAIL, now, room):
                found.append(Due(Kind.PROBE, TAIL))
            if q.bad_probe_on and self.probe_possible(qp, EV, now, room):
                found.append(Due(Kind.PROBE, EV))
            if self.can_send(qp, now, room):
                found.append(Due(Kind.SEND))
        found += [Due(Kind.EV_AGE, evi) for evi in self.old_matches(qp, now)]
        return found

    def settle(self, qp: int, now: int) -> list[CompleteOut]:
        """Takes every due QP_ERROR, COMPLETE, RETIRE, JUDGE, TIMEOUT and EV_AGE step of a QP that drives itself; returns the
        completions."""
        done: list[CompleteOut] = []
        while True:
            q = self.qp[qp]
            if q.fault is not None:
                self.qp_error(qp, *q.fault, now)
            while q.msg_head != q.msg_done or (q.state == QpState.ERROR and q.msg_head != q.msg_tail):
                done.append(self.complete(qp, now))
            for evi in self.old_matches(qp, now):
                self.ev_age(qp, evi, now)
            if q.state != QpState.RTS:
                return done
            retiring = q.retire_bits()
            if retiring:
                for psn in q.psns(retiring):
                    self.retire(qp, psn, now)
            if q.judge_rows:
                for psn in self.judge_list(qp):
                    self.judge(qp, psn, now)
            if not q.timer_on or (now - q.timer_deadline) & M32 >= 1 << 31:
                return done
            self.timeout(qp, now)

    def next_deadline(self, qp: int, now: int | None = None) -> int | None:
        """The next tick at which time alone makes a step due, or None. ``now``: the present (default: tick of the newest step).

        It lies after ``now``, except that ``now`` itself is returned while a TIMEOUT or EV_AGE is due. Probes and retransmissions whose
        time has come but that lack a path, room or cwnd wait for an event, not for a tick, and are not in it.
        """
        q = self.qp[qp]
        now = self.now if now is None else now
        found = []
        if q.matched:
            found.append(now if self.old_matches(qp, now) else q.age_at)
        if q.state == QpState.RTS and q.fault is None:
            ahead = (q.timer_deadline - now) & M32
            if q.timer_on:
                found.append(now + (ahead if ahead < 1 << 31 else 0))
            waits = []
            if q.probe_on:
                waits.append(q.probe_ref + self.glob.probe_time)
            if q.bad_probe_on:
                waits.append(q.bad_probe_at)
            if q.hold and q.lost:
                waits.append(q.hold_until)
            for deadline in waits:
                ahead = (deadline - now) & M32
                if 0 < ahead < 1 << 31:
                    found.append(now + ahead)
        return min(found) if found else None
