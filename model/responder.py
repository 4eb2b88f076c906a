"""The responder side of the golden model: every step of docs/architecture.md, "Responder steps", as one method on plain integers.

A step reads, decides and writes the state of one QP; nothing else changes it. Who calls says when it happens (``now``, ticks of 128 ns,
32 bits) and which choices were made; :class:`StepError` says that the choice was illegal and leaves the state as it was. The same methods
drive :mod:`model.endpoint` and check the hardware (``verif/lockstep.py``).

Decisions where the texts are silent (docs/spec-responder.md numbers them; more in rsp_receive.py and rsp_answers.py):

* ADVANCE that leaves ooo_count > 0 sets prev_ar after an A packet that was ePSN, also when the next row goes on advancing.
* There is no QP_ERROR in ERROR, and a request of the other owner that meets a QP in RESET or INIT makes no step. What QP_ERROR does not
  name keeps its value.
* A write error after an earlier NAK does not replace it. Message ends not yet completed when ERROR comes are dropped.
* RECV_COMPLETE that fails names no entry: wr_id, length and imm are 0.
* RESET waits for SACKs, NACKs, the ACK and the NAK of the QP.
"""

from __future__ import annotations

from typing import TypeVar

from .config import Config, GlobalConfig, QpConfig, Region, Sizes, StepError
from .rsp_receive import Receiver
from .rsp_state import AdvanceOut, ControlOut, FlushOut, PortOut, PostRecvOut, QpErrorOut, RecvCompleteOut, RspQp, Stash
from .spec import PSN_MASK, Command, Drop, Kind, PostStatus, QpState, Syndrome, WcStatus

_RESET, _INIT, _RTR, _RTS, _ERROR = (state.value for state in QpState)
_C = TypeVar("_C", bound=Config)
_M32, _M16 = (1 << 32) - 1, (1 << 16) - 1


class Responder(Receiver):
    """All QPs of one NIC as responder.

    ``qp[i]`` is the state of QP index i, ``config[i]`` its connection parameters, ``region`` the memory regions, ``up`` the mask of planes
    that are up, ``drops[cause]`` counts by :class:`model.spec.Drop`.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.glob = GlobalConfig()
        self.config = [QpConfig() for _ in range(sizes.qps)]
        self.region = [Region() for _ in range(sizes.regions)]
        self.up = (1 << sizes.planes) - 1
        self.drops = [0] * len(Drop)
        self.qp = [self._fresh() for _ in range(sizes.qps)]

    def _fresh(self) -> RspQp:
        sizes = self.sizes
        return RspQp(rev=[0] * sizes.planes, rev_time=[0] * sizes.planes, rev_time_on=[0] * sizes.planes,
                     stash=[Stash() for _ in range(sizes.max_wimm)], recv=[0] * sizes.rq_entries)  # fmt: skip

    # --- host -------------------------------------------------------------------------------------------------------------------------
    def control(self, index: int, now: int, op: int, arg: int = 0, data: Config | int = 0) -> ControlOut:
        """CONTROL: SET_GLOBAL, SET_QP, SET_REGION (``arg`` = region) or MODIFY (``data`` = the new QpState) of QP ``index``.

        ``data``: a configuration object, of which a copy is kept, or the integer of the command's data words. Returns the status of the table
        in architecture.md; a region beyond the last is answered BAD_QP ("no such thing"). TypeError for another class; StepError for another
        command, or a RESET while an answer of the QP is queued.
        """
        qp = self.qp[index]
        status = PostStatus.OK
        if op == Command.SET_GLOBAL:
            if any(other.state not in (_RESET, _INIT) for other in self.qp):
                status = PostStatus.BAD_STATE
            else:
                self.glob = _take(data, GlobalConfig)
        elif op == Command.SET_QP:
            if qp.state != _INIT:
                status = PostStatus.BAD_STATE
            else:
                self.config[index] = _take(data, QpConfig)
        elif op == Command.SET_REGION:
            if not 0 <= arg < self.sizes.regions:
                status = PostStatus.BAD_QP
            else:
                self.region[arg] = _take(data, Region)
        elif op == Command.MODIFY:
            if not isinstance(data, int):
                raise TypeError(f"MODIFY needs a QpState, not {data!r}")
            status = self._modify(index, qp, data & 7)
        else:
            raise StepError(f"CONTROL: op {op} is no command of the responder's CONTROL step (PORT and POST_RECV have steps of their own)")
        return ControlOut(op, arg, status.value)

    def _modify(self, index: int, qp: RspQp, state: int) -> PostStatus:
        if state == _ERROR:
            if qp.state != _ERROR:
                qp.error_due = 1
            return PostStatus.OK
        if state == _RESET:
            if qp.answers or qp.ack_due:
                raise StepError(f"QP {index}: RESET waits until its answers have left")
            self.qp[index] = self._fresh()
            return PostStatus.OK
        if (qp.state, state) not in ((_RESET, _INIT), (_INIT, _RTR), (_RTR, _RTS)):
            return PostStatus.BAD_STATE
        if state == _RTR:
            config = self.config[index]
            before = config.rq_psn - 1 & PSN_MASK
            fresh = self._fresh()
            fresh.rq_head, fresh.rq_tail, fresh.recv = qp.rq_head, qp.rq_tail, qp.recv
            fresh.cack_psn = fresh.max_rcv_psn = fresh.done_psn = before
            fresh.sweep = config.rq_psn
            fresh.right_edge = before + config.rsp_mpr & PSN_MASK
            self.qp[index] = qp = fresh
        qp.state = state
        return PostStatus.OK

    def port(self, now: int, up: int) -> PortOut:
        """PORT: the mask of planes that are up, after administrative state and link."""
        self.up = up
        return PortOut(up)

    def post_recv(self, index: int, now: int, wr_id: int) -> PostRecvOut:
        """POST_RECV: one receive entry, taken in INIT, RTR, RTS and (to be flushed) ERROR; BAD_STATE is judged before FULL."""
        qp = self.qp[index]
        if qp.state == _RESET:
            return PostRecvOut(PostStatus.BAD_STATE.value, wr_id)
        if (qp.rq_tail - qp.rq_head & _M16) >= self.sizes.rq_entries:
            return PostRecvOut(PostStatus.FULL.value, wr_id)
        qp.recv[qp.rq_tail % self.sizes.rq_entries] = wr_id
        qp.rq_tail = qp.rq_tail + 1 & _M16
        return PostRecvOut(PostStatus.OK.value, wr_id)

    # --- errors -----------------------------------------------------------------------------------------------------------------------
    def qp_error(self, index: int, now: int, cause: int) -> QpErrorOut:
        """QP_ERROR: to ERROR; SACKs, NACKs and the pending ACK are dropped, a pending NAK stays, the stash is cleared.

        ``cause``: LOCAL_QP_OPERATION (host, other owner, or a NAK of ours), or LOCAL_MEMORY: host memory refused a payload write, which sends
        NAK 0x63 of cack_psn + 1 (of cack_psn when nothing is held above it) unless a NAK was sent already. StepError in ERROR.
        """
        if cause not in (WcStatus.LOCAL_QP_OPERATION, WcStatus.LOCAL_MEMORY):
            raise StepError(f"QP {index}: the responder does not go to ERROR with cause {cause}")
        qp = self.qp[index]
        if qp.state == _ERROR:
            raise StepError(f"QP {index}: it is in ERROR already")
        if not qp.nak:
            qp.ack_due = 0
            if cause == WcStatus.LOCAL_MEMORY:
                # A PSN that the sender must still hold unacknowledged: the gap, or what the failed write kept from being acknowledged.
                psn = qp.cack_psn + 1 if qp.ooo_count else qp.cack_psn
                self._refuse(qp, Syndrome.NAK_REMOTE_OPERATION.value, psn & PSN_MASK, qp.last_plane)
        qp.state = _ERROR
        qp.error_due = qp.a_in_order = 0
        qp.answers.clear()
        qp.due_ends.clear()
        for stash in qp.stash:
            stash.valid = stash.imm = stash.length = stash.last_psn = 0
        return QpErrorOut(cause)

    def write_error(self, index: int, now: int) -> QpErrorOut:
        """Host memory refused a payload write of this QP: QP_ERROR with cause LOCAL_MEMORY."""
        return self.qp_error(index, now, WcStatus.LOCAL_MEMORY.value)

    # --- what follows a RECEIVE, and timers ---------------------------------------------------------------------------------------------
    def advance(self, index: int, now: int) -> AdvanceOut:
        """ADVANCE: cack_psn moves over the recorded PSNs that follow it, at most to the end of one row of 64. StepError when not due."""
        qp = self.qp[index]
        if not self._may_receive(qp) or qp.error_due or not qp.rcvd & 1:
            raise StepError(f"QP {index}: no ADVANCE is due")
        rcvd = qp.rcvd
        first = qp.cack_psn + 1
        run = min(((rcvd + 1) & ~rcvd).bit_length() - 1, 64 - (first & 63))
        ends = qp.ends & (1 << run) - 1
        while ends:
            bit = ends & -ends
            ends ^= bit
            qp.due_ends.append((first + bit.bit_length() - 1 & PSN_MASK, 1 if qp.imms & bit else 0))
        qp.rcvd >>= run
        qp.ends >>= run
        qp.imms >>= run
        qp.cack_psn = qp.cack_psn + run & PSN_MASK
        qp.ooo_count -= run
        if qp.ooo_count == 0:
            if qp.prev_ar:
                qp.prev_ar = 0
                self._queue_last_sack(index, qp)
        elif qp.a_in_order:
            qp.prev_ar = 1
        return AdvanceOut(qp.cack_psn)

    def recv_complete(self, index: int, now: int) -> RecvCompleteOut:
        """RECV_COMPLETE: the next message end at or before cack_psn completes; in ERROR the next receive entry is flushed.

        A WriteIMM whose stash entry is not the one that its turn needs: NAK 0x61; without a receive entry: NAK 0x63. StepError when not due.
        """
        qp = self.qp[index]
        entries = self.sizes.rq_entries
        if qp.state == _ERROR and qp.rq_head != qp.rq_tail:
            wr_id = qp.recv[qp.rq_head % entries]
            qp.rq_head = qp.rq_head + 1 & _M16
            return RecvCompleteOut(0, 0, WcStatus.FLUSHED.value, wr_id)
        if not self._may_receive(qp) or qp.error_due or not qp.due_ends:
            raise StepError(f"QP {index}: no RECV_COMPLETE is due")
        psn, is_imm = qp.due_ends[0]
        out = RecvCompleteOut(psn, is_imm, WcStatus.SUCCESS.value)
        if is_imm:
            stash = qp.stash[qp.next_rqmsn % self.sizes.max_wimm]
            if not stash.valid or stash.last_psn != psn:
                self._refuse(qp, Syndrome.NAK_INVALID_REQUEST.value, psn, qp.last_plane)
                out.status = WcStatus.REMOTE_INVALID_REQUEST.value
                return out
            if qp.rq_head == qp.rq_tail:
                self._refuse(qp, Syndrome.NAK_REMOTE_OPERATION.value, psn, qp.last_plane)
                out.status = WcStatus.REMOTE_OPERATION.value
                return out
            out.wr_id, out.length, out.imm = qp.recv[qp.rq_head % entries], stash.length, stash.imm
            qp.rq_head = qp.rq_head + 1 & _M16
            qp.next_rqmsn = qp.next_rqmsn + 1 & _M16
            stash.valid = 0
        qp.due_ends.popleft()
        qp.done_psn = psn
        qp.done_msn = qp.done_msn + 1 & PSN_MASK
        qp.ack_valid = 1
        self._ask_ack(qp, qp.last_plane)
        return out

    def flush(self, index: int, now: int) -> FlushOut:
        """FLUSH: arrivals have waited for sack_flush_time without a SACK. StepError when not due."""
        qp = self.qp[index]
        if not self._flush_due(qp, now):
            raise StepError(f"QP {index}: no FLUSH is due at tick {now}")
        self._queue_last_sack(index, qp)
        return FlushOut()

    @staticmethod
    def _may_receive(qp: RspQp) -> bool:
        return qp.state in (_RTR, _RTS)

    def _flush_due(self, qp: RspQp, now: int) -> bool:
        return bool(qp.flush_on and not now - qp.flush_at & 1 << 31 and self._may_receive(qp) and not qp.error_due)

    # --- what is due ------------------------------------------------------------------------------------------------------------------
    def pending(self, index: int, now: int) -> list[Kind]:
        """Steps of the QP that are due and legal now, in the order of priority: empty when it rests. Several QP states hide later ones."""
        qp = self.qp[index]
        if qp.error_due:
            return [Kind.QP_ERROR]
        if qp.state == _ERROR:
            out = [Kind.RECV_COMPLETE] if qp.rq_head != qp.rq_tail else []
        elif qp.rcvd & 1:
            return [Kind.ADVANCE]
        elif qp.due_ends:
            return [Kind.RECV_COMPLETE]
        else:
            out = [Kind.FLUSH] if qp.flush_on and self._flush_due(qp, now) else []
        if qp.ack_due:
            out.append(Kind.EMIT_ACK)
        if qp.answers:
            out.append(Kind.EMIT_NACK if qp.answers[0].reason else Kind.EMIT_SACK)
        return out

    def next_deadline(self, index: int) -> int | None:
        """The tick at which FLUSH becomes due, None when nothing is armed."""
        qp = self.qp[index]
        return qp.flush_at if qp.flush_on and self._may_receive(qp) else None


def _take(data: Config | int, kind: type[_C]) -> _C:
    """``data`` as a configuration of ``kind``, a copy, so that the caller's object can change."""
    if isinstance(data, int):
        return kind.unpack(data)
    if not isinstance(data, kind):
        raise TypeError(f"a {kind.__name__} or the integer of the data words is needed, not {data!r}")
    return data.copy()
