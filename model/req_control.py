"""Steps of the requestor that the host causes or sees: CONTROL, PORT, QP_ERROR, POST, COMPLETE."""

from __future__ import annotations

from typing import TypeVar

from .config import Config, EvConfig, GlobalConfig, QpConfig, StepError, WorkRequest
from .paths import allow, deny, set_health
from .req_base import ReqBase
from .req_results import CompleteOut, ControlOut, PortOut, PostOut, QpErrorOut
from .req_state import M16, M24, M32, Message, ReqQp, expiry_ticks
from .spec import Command, Health, PostStatus, QpState, WcStatus

_C = TypeVar("_C", bound=Config)
NEXT_STATE = {QpState.RESET: QpState.INIT, QpState.INIT: QpState.RTR, QpState.RTR: QpState.RTS}


class ControlSteps(ReqBase):
    """CONTROL, PORT, QP_ERROR, POST, COMPLETE."""

    def control(self, op: int, qp: int, index: int, data: Config | int, now: int) -> ControlOut:
        """A command of the host except POST and PORT, whose steps have their own kinds (MRC-REQ-052 to 057).

        ``qp``: index, in range (the dispatcher refuses others). ``index``: the EV. ``data``: the parameters, a configuration object or the
        integer of the command's data words; MODIFY: the new ``QpState``; EV_STATE: 1 = DENIED, 0 = back to GOOD. An EV index out of range
        is answered BAD_QP ("no such thing").
        """
        self.now = now
        q = self.qp[qp]
        if op == Command.SET_GLOBAL:
            if any(other.state not in (QpState.RESET, QpState.INIT) for other in self.qp):
                return ControlOut(PostStatus.BAD_STATE)
            self.glob = _take(data, GlobalConfig)
        elif op == Command.SET_QP:
            if q.state != QpState.INIT:
                return ControlOut(PostStatus.BAD_STATE)
            q.config = _take(data, QpConfig)
        elif op in (Command.SET_EV, Command.EV_STATE):
            if not 0 <= index < self.sizes.total_evs:
                return ControlOut(PostStatus.BAD_QP)
            if op == Command.SET_EV:
                if q.state != QpState.INIT:
                    return ControlOut(PostStatus.BAD_STATE)
                self._set_ev(q, index, _take(data, EvConfig))
            elif _number(data) & 1:
                deny(q.path, index)
            else:
                allow(q.path, index)
        elif op == Command.MODIFY:
            return ControlOut(self._modify(qp, _number(data) & 7))
        else:
            raise StepError(f"CONTROL: op {op} is no command of the requestor's CONTROL step (POST and PORT have steps of their own)")
        return ControlOut(PostStatus.OK)

    @staticmethod
    def _set_ev(q: ReqQp, evi: int, config: EvConfig) -> None:
        q.ev[evi].value = config.value
        row, bit = q.path.planes[evi // q.path.evs], 1 << evi % q.path.evs
        row.active = row.active | bit if config.active else row.active & ~bit
        set_health(row, bit, Health(config.health))

    def _modify(self, qp: int, target: int) -> PostStatus:
        q = self.qp[qp]
        if target == QpState.RESET:
            if q.tx_pending:
                raise StepError(f"CONTROL, QP {qp}: RESET must wait, {q.tx_pending} descriptors have not departed")
            self.qp[qp] = self._fresh(q.records, q.config)
        elif target == QpState.ERROR:
            if q.state != QpState.ERROR and q.fault is None:
                self.fail(q, WcStatus.LOCAL_QP_OPERATION)
        elif NEXT_STATE.get(QpState(q.state)) == target:
            q.state = target
            if target == QpState.RTS:
                self._start(q)
        else:
            return PostStatus.BAD_STATE
        return PostStatus.OK

    def _start(self, q: ReqQp) -> None:
        """Initial state at RTS (MRC-REQ-058); everything else is 0 since RESET."""
        first = q.config.sq_psn
        q.next_psn = q.post_psn = q.oldest = first
        q.unack_psn = (first - 1) & M24
        q.right_edge = (first - 1 + q.config.req_mpr) & M24
        q.path.lfsr = q.config.lfsr_seed

    def port(self, up_mask: int, now: int) -> PortOut:
        """The planes whose port is up (administrative state and link); the others leave the selection at once (MRC-REQ-155)."""
        if not 0 <= up_mask < 1 << self.sizes.planes:
            raise StepError(f"PORT: mask {up_mask:#x} names planes that do not exist; there are {self.sizes.planes}")
        self.now = now
        self.up = up_mask
        return PortOut(up_mask)

    def qp_error(self, qp: int, cause: int, msg: int, now: int) -> QpErrorOut:
        """The QP enters ERROR (MRC-REQ-059). ``msg``: counter of the message that ends with ``cause``; the others are flushed.

        Legal when a step asked for exactly this, or with LOCAL_QP_OPERATION, which the responder or the host can ask for at any time.
        """
        q = self.qp[qp]
        self.now = now
        if q.state == QpState.ERROR:
            raise StepError(f"QP_ERROR, QP {qp}: it is in ERROR already")
        allowed = {(int(WcStatus.LOCAL_QP_OPERATION), q.msg_done)} | ({q.fault} if q.fault else set())
        if (cause, msg) not in allowed:
            wanted = " or ".join(f"{WcStatus(c).name} for message {m}" for c, m in sorted(allowed))
            raise StepError(f"QP_ERROR, QP {qp}: cause {cause} for message {msg}, but the state allows {wanted}")
        q.state = QpState.ERROR
        # With nothing unfinished there is no message to blame: what is posted from now on is flushed.
        q.err_status, q.err_msg = (WcStatus.FLUSHED if q.idle else cause), msg
        q.timer_on = q.probe_on = q.want_probe = q.bad_probe_on = q.hold = 0
        q.fault = None
        return QpErrorOut(cause, msg)

    def post(self, qp: int, wr: WorkRequest, now: int) -> PostOut:
        """A work request: stored with its PSNs, MSN and RQMSN, or refused in the order length, state, slot (MRC-REQ-060, 063, 064)."""
        q = self.qp[qp]
        self.now = now
        if wr.length == 0:
            return PostOut(PostStatus.BAD_LENGTH)
        if q.state not in (QpState.RTS, QpState.ERROR):
            return PostOut(PostStatus.BAD_STATE)
        slots = len(q.messages)
        if (q.msg_tail - q.msg_head) & M16 >= slots:
            return PostOut(PostStatus.FULL)
        slot = q.msg_tail & slots - 1
        mtu = 256 << q.config.mtu
        packets = -(-wr.length // mtu)
        first = q.post_psn
        q.messages[slot] = Message(
            wr.imm_valid, wr.laddr, wr.raddr, wr.length, wr.rkey, wr.imm, wr.wr_id,
            first, (first + packets - 1) & M24, q.next_msn, q.next_rqmsn, packets,
        )  # fmt: skip
        q.next_msn = (q.next_msn + 1) & M16
        if wr.imm_valid:
            q.next_rqmsn = (q.next_rqmsn + 1) & M16
        if q.state == QpState.RTS and q.idle:
            q.timer_on = 1
            q.timer_deadline = (now + expiry_ticks(q.config, 1)) & M32
            q.expiry = q.retry = 0
        q.post_psn = (first + packets) & M24
        q.msg_tail = (q.msg_tail + 1) & M16
        return PostOut(PostStatus.OK, slot)

    def complete(self, qp: int, now: int) -> CompleteOut:
        """The next work completion, in posting order (MRC-REQ-065)."""
        q = self.qp[qp]
        self.now = now
        msg = q.msg_head
        if msg != q.msg_done:
            status = WcStatus.SUCCESS
        elif q.state == QpState.ERROR and msg != q.msg_tail:
            status = WcStatus(q.err_status) if msg == q.err_msg else WcStatus.FLUSHED
            q.msg_done = (msg + 1) & M16
        else:
            raise StepError(f"COMPLETE, QP {qp}: message {msg} is not finished")
        q.msg_head = (msg + 1) & M16
        message = q.message_of(msg)
        return CompleteOut(msg, int(status), message.wr_id, message.length)


def _take(data: Config | int, kind: type[_C]) -> _C:
    """``data`` as a configuration of ``kind``, a copy, so that the caller's object can change."""
    if isinstance(data, int):
        return kind.unpack(data)
    if not isinstance(data, kind):
        raise TypeError(f"a {kind.__name__} or the integer of the data words is needed, not {data!r}")
    return data.copy()


def _number(data: Config | int) -> int:
    if not isinstance(data, int):
        raise TypeError(f"an integer is needed, not {data!r}")
    return data
