"""The answers of the responder: queueing, the bitmap base rule, the reverse path and the EMIT steps.

Decisions where the texts are silent (docs/spec-responder.md):

* Every queued SACK, whatever its reason, clears trigger_cnt and flush_on.
* The queue of a QP is a FIFO over SACKs and NACKs. An answer may leave before soft ones queued earlier only if each of those has a later
  SACK behind it in the queue (the emitted one included): they are absorbed and vanish.
* A dropped answer (no port up, or only DENIED EVs) leaves the queue, is counted as NO_PORT and changes nothing else: no alt, no sweep, no
  right_edge, no reverse EV.
* The pending transport ACK or NAK is one flag and one plane per QP; a new cause replaces the plane. What it says is decided when it leaves.
"""

from __future__ import annotations

from .config import GlobalConfig, QpConfig, Sizes, StepError
from .rsp_state import Answer, EmitAckOut, EmitNackOut, EmitSackOut, RevRow, RspQp, Rx
from .spec import MPR_UNIT, PSN_MASK, RCVD_UNIT, SACK_BITMAP_BITS, Drop, MFlag, QpState, Syndrome

_SIGN = 1 << 23
_BITMAP = (1 << SACK_BITMAP_BITS) - 1


def s24(value: int) -> int:
    """Signed 24-bit reading of a PSN difference."""
    return (value + _SIGN & PSN_MASK) - _SIGN


class Answers:
    """Pending answers of every QP and the steps that send them. Base of :class:`model.responder.Responder`, which owns the rest."""

    sizes: Sizes
    glob: GlobalConfig
    config: list[QpConfig]
    qp: list[RspQp]
    up: int  # mask of the planes that are up
    drops: list[int]  # counters by spec.Drop

    # --- queueing, called by the steps that have a reason -----------------------------------------------------------------------------
    @staticmethod
    def _queue_sack(qp: RspQp, answer: Answer) -> None:
        qp.answers.append(answer)
        qp.trigger_cnt = 0
        qp.flush_on = 0

    def _queue_rx_sack(self, index: int, qp: RspQp, rx: Rx, tick: int, soft: int = 0, base_at_epsn: int = 0) -> None:
        mflag = MFlag.SKIP_ONCE.value if rx.ce else 0
        self._queue_sack(qp, Answer(index, rx.plane, 0, soft, base_at_epsn, 0, 0, rx.psn, mflag, rx.ev, tick))

    def _queue_last_sack(self, index: int, qp: RspQp) -> None:
        """A soft SACK with the fields of the last accepted packet; what M was then is not kept, so it says NONE."""
        self._queue_sack(qp, Answer(index, qp.last_plane, 0, 1, 0, 0, 0, qp.last_psn, 0, qp.last_ev, qp.last_tick))

    def _queue_nack(self, index: int, qp: RspQp, rx: Rx, tick: int, reason: int) -> None:
        qp.answers.append(Answer(index, rx.plane, reason, 0, 0, 0, 0, rx.psn, 0, rx.ev, tick))

    @staticmethod
    def _ask_ack(qp: RspQp, plane: int) -> None:
        qp.ack_due = 1
        qp.ack_plane = plane

    @staticmethod
    def _refuse(qp: RspQp, syndrome: int, psn: int, plane: int) -> None:
        """Record the NAK and ask for it and for QP_ERROR."""
        qp.nak = syndrome
        qp.nak_psn = psn
        qp.ack_due = 1
        qp.ack_plane = plane
        qp.error_due = 1

    # --- reverse path ---------------------------------------------------------------------------------------------------------------
    def exit_plane(self, cause: int) -> int | None:
        """The plane on which an answer to a packet from plane ``cause`` leaves: that one, else the next one up, cyclic; None: no port is up."""
        planes = self.sizes.planes
        for k in range(planes):
            plane = (cause + k) % planes
            if self.up >> plane & 1:
                return plane
        return None

    def emit_plane(self, index: int) -> int | None:
        """The plane whose row the next emit of the QP reads (ACK or NAK first, else the oldest answer); None when it will be dropped."""
        qp = self.qp[index]
        return self.exit_plane(qp.ack_plane if qp.ack_due else qp.answers[0].plane)

    def _reverse(self, index: int, qp: RspQp, cause: int, room: int, row: RevRow | None) -> tuple[int, int, int, int, int, int, int, int]:
        """Dropped, room, plane, EV in the plane, EV value, good, active, denied of an answer that leaves now; moves the reverse EV."""
        plane = self.exit_plane(cause)
        if plane is None:
            self.drops[Drop.NO_PORT] += 1
            return 1, room, 0, 0, 0, 0, 0, 0
        if row is None or row.plane != plane:
            raise StepError(f"QP {index}: the answer leaves on plane {plane}, but the row of {row and row.plane} was read")
        candidates = row.active & row.good or ~row.denied & (1 << self.sizes.evs) - 1
        if not candidates:
            self.drops[Drop.NO_PORT] += 1
            return 1, room, plane, 0, 0, row.good, row.active, row.denied
        if not room >> plane & 1:
            raise StepError(f"QP {index}: an answer leaves on plane {plane}, which has no room (room = {room:#b})")
        start = qp.rev[plane]
        ahead = candidates >> start << start or candidates
        ev = (ahead & -ahead).bit_length() - 1
        qp.rev[plane] = ev
        return 0, room, plane, ev, row.values[ev], row.good, row.active, row.denied

    # --- steps ----------------------------------------------------------------------------------------------------------------------
    def _emitting(self, index: int) -> RspQp:
        qp = self.qp[index]
        if qp.error_due:
            raise StepError(f"QP {index}: QP_ERROR comes before any emit")
        if (qp.rcvd & 1 or qp.due_ends) and qp.state != QpState.ERROR:
            raise StepError(f"QP {index}: ADVANCE and RECV_COMPLETE come before any emit")
        return qp

    def emit_ack(self, index: int, now: int, room: int, row: RevRow | None) -> EmitAckOut:
        """EMIT_ACK: the newest transport ACK, or the NAK once there is one. ``room``: planes that can take a frame; ``row``: of the exit plane.

        StepError when none is pending, ADVANCE, RECV_COMPLETE or QP_ERROR is due, the exit plane has no room, or the row is another plane's.
        """
        qp = self._emitting(index)
        if not qp.ack_due:
            raise StepError(f"QP {index}: no transport ACK or NAK is pending")
        out = EmitAckOut(*self._reverse(index, qp, qp.ack_plane, room, row))
        qp.ack_due = 0
        if not out.dropped:
            out.syndrome, out.psn = (qp.nak, qp.nak_psn) if qp.nak else (Syndrome.ACK.value, qp.done_psn)
            out.aeth_msn = qp.done_msn
        return out

    def _absorb(self, index: int, qp: RspQp, chosen: Answer | None, nack: bool) -> tuple[Answer, int]:
        """The answer that leaves and its position; illegal when it is not the oldest after legal absorption."""
        name = "NACK" if nack else "SACK"
        position = 0
        for answer in qp.answers:
            if bool(answer.reason) == nack and (chosen is None or answer == chosen):
                break
            if not answer.soft:
                raise StepError(f"QP {index}: {answer} must leave before a {name} {chosen or ''}")
            position += 1
        else:
            raise StepError(f"QP {index}: no {name} {chosen or ''} is pending")
        if position and nack and not any(not later.reason for later in list(qp.answers)[position + 1 :]):
            raise StepError(f"QP {index}: {qp.answers[position - 1]} vanished without a later SACK")
        return answer, position

    @staticmethod
    def _remove(qp: RspQp, position: int) -> None:
        for _ in range(position + 1):
            qp.answers.popleft()

    def emit_nack(self, index: int, now: int, room: int, row: RevRow | None, answer: Answer | None = None) -> EmitNackOut:
        """EMIT_NACK: ``answer`` (default: the oldest) leaves. StepError as :meth:`emit_ack`, or when another answer must leave first."""
        qp = self._emitting(index)
        chosen, position = self._absorb(index, qp, answer, nack=True)
        out = EmitNackOut(*self._reverse(index, qp, chosen.plane, room, row), chosen)
        self._remove(qp, position)
        return out

    def emit_sack(self, index: int, now: int, room: int, row: RevRow | None, answer: Answer | None = None) -> EmitSackOut:
        """EMIT_SACK: ``answer`` (default: the oldest) leaves, with cack_psn, bitmap, counts of this very step (one snapshot).

        Soft SACKs before it are absorbed. StepError as :meth:`emit_ack`, or when another answer must leave first.
        """
        qp = self._emitting(index)
        chosen, position = self._absorb(index, qp, answer, nack=False)
        out = EmitSackOut(*self._reverse(index, qp, chosen.plane, room, row), chosen)
        self._remove(qp, position)
        if out.dropped:
            return out
        cack = qp.cack_psn
        distance = self._base(qp, chosen.base_at_epsn)
        mpr = self.config[index].rsp_mpr
        if s24(cack + mpr - qp.right_edge) > 0:
            qp.right_edge = cack + mpr & PSN_MASK
        out.cack_psn = cack
        out.sack_offset = distance + 1
        out.sack_bitmap = qp.rcvd >> distance & _BITMAP
        out.ack_psn_offset = chosen.probe_id if chosen.pr else chosen.psn - cack & 0xFFFF
        out.ooo_count = qp.ooo_count & 0x7FFF
        out.rcvd_bytes = -(-qp.rcvd_bytes // RCVD_UNIT) & 0xFFFFFF
        out.mpr = mpr // MPR_UNIT
        return out

    @staticmethod
    def _base(qp: RspQp, at_epsn: int) -> int:
        """Distance of the bitmap's base from ePSN, 0 or more; moves alt and sweep.

        Newest 64 and a sweep over everything held take turns, so that all held is reported again within 2 x ceil(mpr / 64) SACKs.
        """
        if at_epsn:
            return 0
        epsn = qp.cack_psn + 1 & PSN_MASK
        newest = max(0, s24(qp.max_rcv_psn - 63 - epsn))
        qp.alt ^= 1
        if not qp.alt or newest == 0:
            return newest
        distance = qp.sweep - epsn & PSN_MASK
        if distance >= newest:
            distance = 0
        qp.sweep = epsn + distance + SACK_BITMAP_BITS & PSN_MASK
        return distance
