"""RECEIVE: admission, PSN class, packet checks, and what an accepted packet leaves behind (facts 3).

Decisions where the texts are silent (docs/spec-responder.md):

* A probe in ERROR with a NAK passes the address and P_Key checks before it is answered.
* A new trimmed packet that gets its NACK, and a probe that gets the NAK, are not drops: ``drop`` is 0xFF.
* Pad is judged by udp_len mod 4: all headers are multiples of 4 bytes.
* Reverse EVs move on duplicates behind and above alike, whether the answer then leaves or not.
"""

from __future__ import annotations

from .config import Region, StepError
from .rsp_answers import Answers, s24
from .rsp_checks import host_address, lengths_ok
from .rsp_state import NOT_DROPPED, Answer, ReceiveOut, RspQp, Rx
from .spec import (
    ANCIENT,
    DATA_OPCODES,
    END_OPCODES,
    IMM_OPCODES,
    ROUTING_BYTES,
    SACK_MIN_COUNT,
    Drop,
    MFlag,
    NackReason,
    Opcode,
    QpState,
    Syndrome,
)

_RTR, _RTS, _ERROR = QpState.RTR.value, QpState.RTS.value, QpState.ERROR.value
_M32, _M16 = (1 << 32) - 1, (1 << 16) - 1
_RESOURCE_REASONS = frozenset({NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE})


class Receiver(Answers):
    """The RECEIVE step of :class:`model.responder.Responder`."""

    region: list[Region]

    def receive(self, index: int, now: int, rx: Rx, no_resource: int = 0) -> ReceiveOut:
        """RECEIVE of a data packet or probe: checks, PSN class, then record it or answer. ``index`` has no meaning when rx.known is 0.

        ``no_resource``: a NackReason when the hardware is short of resources for this new, sound packet (a free choice), else 0.
        StepError when ADVANCE, RECV_COMPLETE or QP_ERROR of the QP is due, the opcode is not the responder's, or no_resource names a wrong
        reason or comes with a packet that needs no resources.
        """
        qp = self.qp[index]
        is_probe = rx.opcode == Opcode.PROBE
        if not is_probe and rx.opcode not in DATA_OPCODES:
            raise StepError(f"opcode {rx.opcode:#x} is not for the responder")
        drop = self._admission(qp, rx, is_probe)
        if no_resource and (drop is not None or is_probe or not self._needs_resources(index, qp, rx)):
            raise StepError(f"QP {index}: no_resource = {no_resource} for a packet that needs no resources")
        if no_resource and no_resource not in _RESOURCE_REASONS:
            raise StepError(f"QP {index}: {no_resource} is not a resource reason")
        if drop is not None:
            return self._drop(drop)
        if qp.error_due or ((qp.rcvd & 1 or qp.due_ends) and qp.state != _ERROR):
            raise StepError(f"QP {index}: QP_ERROR, ADVANCE and RECV_COMPLETE come before the next RECEIVE")
        return self._probe(index, qp, rx) if is_probe else self._data(index, qp, now, rx, no_resource)

    def _drop(self, cause: Drop) -> ReceiveOut:
        self.drops[cause] += 1
        return ReceiveOut(cause.value)

    @staticmethod
    def _admission(qp: RspQp, rx: Rx, is_probe: bool) -> Drop | None:
        if not rx.known:
            return Drop.UNKNOWN_QP
        if qp.state == _ERROR:
            if not is_probe or not qp.nak:
                return Drop.QP_ERROR
        elif qp.state != _RTS and qp.state != _RTR:
            return Drop.QP_STATE
        if not rx.addr_ok:
            return Drop.ADDRESS
        return None if rx.pkey_ok else Drop.PKEY

    def _probe(self, index: int, qp: RspQp, rx: Rx) -> ReceiveOut:
        if qp.state == _ERROR:
            self._ask_ack(qp, rx.plane)
            return ReceiveOut(NOT_DROPPED)
        mflag = MFlag.SKIP_ONCE.value if rx.ce else 0
        self._queue_sack(qp, Answer(index, rx.plane, 0, 0, 1, 1, rx.probe_id, 0, mflag, rx.ev, rx.tx_timestamp))
        if qp.ack_valid:
            self._ask_ack(qp, rx.plane)
        return ReceiveOut(NOT_DROPPED)

    def _window(self, index: int, qp: RspQp) -> int:
        """PSNs from ePSN on that are inside the window, never less than the largest right edge ever announced."""
        return max(self.config[index].rsp_mpr, s24(qp.right_edge - qp.cack_psn))

    def _needs_resources(self, index: int, qp: RspQp, rx: Rx) -> bool:
        d = s24(rx.psn - qp.cack_psn - 1)
        new = 0 <= d < self._window(index, qp) and not qp.rcvd >> d & 1 and not rx.trimmed
        return new and not self._check(index, qp, rx)[0]

    def _data(self, index: int, qp: RspQp, now: int, rx: Rx, no_resource: int) -> ReceiveOut:
        tick = rx.tx_timestamp if rx.ts else 0
        d = s24(rx.psn - qp.cack_psn - 1)
        if d < -ANCIENT:
            return self._drop(Drop.ANCIENT)
        if d < 0 or qp.rcvd >> d & 1:
            self._queue_rx_sack(index, qp, rx, tick, base_at_epsn=1)
            if d < 0 and qp.ack_valid:
                self._ask_ack(qp, rx.plane)
            self._turn_reverse(qp, now, rx.plane)
            return self._drop(Drop.DUPLICATE)
        if d >= self._window(index, qp):
            if not self.glob.oor_silent:
                self._queue_nack(index, qp, rx, tick, NackReason.PSN_OOR_WINDOW.value)
            return self._drop(Drop.OUT_OF_WINDOW)
        if rx.trimmed:
            if not self.config[index].trim_nack:
                return self._drop(Drop.TRIM_IGNORED)
            reason = NackReason.TRIMMED if rx.trimmed == 1 else NackReason.TRIMMED_LASTHOP
            self._queue_nack(index, qp, rx, tick, reason.value)
            return ReceiveOut(NOT_DROPPED)
        syndrome, addr = self._check(index, qp, rx)
        if syndrome:
            self._refuse(qp, syndrome, rx.psn, rx.plane)
            return self._drop(Drop.NAKED)
        if no_resource:
            self._queue_nack(index, qp, rx, tick, no_resource)
            self.drops[Drop.NO_RESOURCE] += 1
            return ReceiveOut(Drop.NO_RESOURCE.value, no_resource=no_resource)
        self._accept(index, qp, now, rx, tick, d)
        return ReceiveOut(NOT_DROPPED, 1, addr)

    def _turn_reverse(self, qp: RspQp, now: int, plane: int) -> None:
        """A duplicate from ``plane`` is the sign that answers die there: next reverse EV, at most once per base_rtt."""
        if qp.rev_time_on[plane] and (now - qp.rev_time[plane] & _M32) < self.glob.base_rtt:
            return
        qp.rev[plane] = (qp.rev[plane] + 1) % self.sizes.evs
        qp.rev_time[plane] = now & _M32
        qp.rev_time_on[plane] = 1

    def _check(self, index: int, qp: RspQp, rx: Rx) -> tuple[int, int]:
        """Packet checks in order: lengths, stash, access. The NAK's syndrome (0: sound) and the payload's host address."""
        if not lengths_ok(rx, 256 << self.config[index].mtu):
            return Syndrome.NAK_INVALID_REQUEST.value, 0
        if rx.opcode in IMM_OPCODES and (rx.rqmsn - qp.next_rqmsn & _M16) >= self.sizes.max_wimm:
            return Syndrome.NAK_INVALID_REQUEST.value, 0
        addr = host_address(self.region, rx.rkey, rx.va, rx.plen)
        return (Syndrome.NAK_REMOTE_ACCESS.value, 0) if addr is None else (0, addr)

    def _accept(self, index: int, qp: RspQp, now: int, rx: Rx, tick: int, d: int) -> None:
        qp.rcvd |= 1 << d
        if s24(rx.psn - qp.max_rcv_psn) > 0:
            qp.max_rcv_psn = rx.psn
        qp.ooo_count += 1
        qp.rcvd_bytes = qp.rcvd_bytes + rx.udp_len + ROUTING_BYTES & _M32
        if rx.opcode in END_OPCODES:
            qp.ends |= 1 << d
            if rx.opcode in IMM_OPCODES:
                qp.imms |= 1 << d
                stash = qp.stash[rx.rqmsn % self.sizes.max_wimm]
                stash.valid, stash.imm, stash.length, stash.last_psn = 1, rx.imm, rx.dmalen, rx.psn
        qp.last_ev, qp.last_tick, qp.last_plane, qp.last_psn = rx.ev, tick, rx.plane, rx.psn
        qp.a_in_order = 0 if d else rx.a
        if rx.a and d:
            qp.prev_ar = 1
        qp.trigger_cnt += max(rx.plen, SACK_MIN_COUNT)
        hard = rx.a or rx.ce or rx.rtx
        if hard or qp.trigger_cnt >= self.glob.sack_threshold:
            self._queue_rx_sack(index, qp, rx, tick, soft=0 if hard else 1)
        elif self.glob.sack_flush_time and not qp.flush_on:
            qp.flush_on = 1
            qp.flush_at = now + self.glob.sack_flush_time & _M32
