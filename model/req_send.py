"""Steps of the requestor that put data on the wire: SEND, and DEPART, which reports that a frame started to leave."""

from __future__ import annotations

from .config import StepError
from .paths import Selection, add_credit, commit, select, usable_mask
from .req_base import ReqBase
from .req_results import DepartOut, SendOut
from .req_state import DATA_OVERHEAD, HALF24, HALF32, IMM_BYTES, M16, M24, M32, ReqQp, wire16
from .spec import Opcode, QpState, WcStatus

ALL64 = (1 << 64) - 1


class SendSteps(ReqBase):
    """SEND, DEPART."""

    @staticmethod
    def oldest_lost(q: ReqQp) -> int | None:
        """The oldest LOST PSN that is not acknowledged, the next one to be resent (MRC-REQ-070)."""
        waiting = q.lost
        if waiting:
            waiting &= ~q.acked_bits()
            if waiting:
                return q.first(waiting)
        return None

    def cwnd_open(self, q: ReqQp) -> bool:
        """The congestion window's rule for one more packet (MRC-REQ-071)."""
        if self.glob.cwnd_rule_below:
            return q.inflight < q.config.cwnd
        return q.inflight + (256 << q.config.mtu) <= q.config.cwnd

    def new_ready(self, q: ReqQp, cwnd_open: bool) -> bool:
        """Whether new data could be sent but for the path: data, windows, cwnd, WriteIMM limit (MRC-REQ-072 to 074)."""
        if not cwnd_open or q.msg_send == q.msg_tail:
            return False
        psn = q.next_psn
        if (q.right_edge - psn) & M24 >= HALF24:
            return False
        # The ring has to hold every unretired PSN, and every PSN above unack_psn: a SACK may retire its successor before an ACK moves it.
        if (psn - q.oldest) & M24 >= q.window or (psn - q.unack_psn - 1) & M24 >= q.window:
            return False
        if q.send_pkt == 0 and q.wimm_open >= q.config.peer_max_wimm:
            return not q.message_of(q.msg_send).imm_valid
        return True

    def candidate(self, qp: int, now: int) -> tuple[int, int] | None:
        """(rtx, PSN) of the packet that a SEND step would have to carry, or None. The path may still have to wait (MRC-REQ-075)."""
        return self._candidate(self.qp[qp], now)

    def _candidate(self, q: ReqQp, now: int) -> tuple[int, int] | None:
        is_open = self.cwnd_open(q)
        psn = self.oldest_lost(q)
        if psn is not None:
            if q.head_free and psn == (q.unack_psn + 1) & M24:
                return 1, psn
            if is_open and (not q.hold or (now - q.hold_until) & M32 < HALF32):
                return 1, psn
        return (0, q.next_psn) if self.new_ready(q, is_open) else None

    def _select(self, q: ReqQp, rtx: int, psn: int, room: int) -> Selection | None:
        masked = usable_mask(q.path, self.up, q.records[psn & q.window - 1].evi) if rtx else None
        return select(q.path, self.up, room, not rtx, masked, bool(self.glob.spray_in_order))

    def can_send(self, qp: int, now: int, room: int) -> bool:
        """Whether a SEND step is possible."""
        q = self.qp[qp]
        if q.state != QpState.RTS or q.fault is not None:
            return False
        found = self._candidate(q, now)
        return found is not None and self._select(q, *found, room) is not None

    def try_send(self, qp: int, now: int, room: int, a: int | None = None) -> SendOut | None:
        """A SEND step if one is possible, else None and nothing changes."""
        q = self.qp[qp]
        if q.state != QpState.RTS or q.fault is not None:
            return None
        found = self._candidate(q, now)
        if found is None:
            return None
        choice = self._select(q, *found, room)
        return None if choice is None else self._send(q, now, *found, choice, a)

    def send(self, qp: int, now: int, room: int, rtx: int | None = None, psn: int | None = None, a: int | None = None) -> SendOut:
        """One packet: a retransmission, else new data. ``room``: planes that can take a frame.

        ``rtx``, ``psn``: what the hardware sent, checked against the rule. ``a``: the A bit, checked where it must be 1; None: as the rule
        demands.
        """
        q = self._qp(qp, now, "SEND")
        found = self._candidate(q, now)
        if found is None:
            raise StepError(f"SEND, QP {qp}: neither new data nor a retransmission may be sent (next_psn {q.next_psn:#x}, right_edge "
                            f"{q.right_edge:#x}, oldest {q.oldest:#x}, inflight {q.inflight}, cwnd {q.config.cwnd})")  # fmt: skip
        if (rtx is not None and rtx != found[0]) or (psn is not None and psn != found[1]):
            raise StepError(f"SEND, QP {qp}: rtx {rtx}, PSN {psn} sent, but rtx {found[0]}, PSN {found[1]:#x} is due")
        choice = self._select(q, *found, room)
        if choice is None:
            raise StepError(f"SEND, QP {qp}: no EV may be used now, the packet must wait")
        return self._send(q, now, *found, choice, a)

    def _send(self, q: ReqQp, now: int, rtx: int, psn: int, choice: Selection, a: int | None) -> SendOut:
        self.now = now
        position = psn & q.window - 1
        record = q.records[position]
        shift = q.config.mtu + 8
        if rtx:
            slot = record.slot
            message = q.messages[slot]
            index = (psn - message.first_psn) & M24
        else:
            slot = q.msg_send & len(q.messages) - 1
            message = q.messages[slot]
            index = q.send_pkt
        offset = index << shift
        left = message.length - offset
        mtu = 1 << shift
        if left > mtu:
            end, plen, imm = 0, mtu, 0
            opcode = Opcode.WRITE_MIDDLE if index else Opcode.WRITE_FIRST
            size = DATA_OVERHEAD + mtu
        else:
            end, plen = 1, left
            size = DATA_OVERHEAD + (left + 3 & ~3)
            if message.imm_valid:
                imm = message.imm
                size += IMM_BYTES
                opcode = Opcode.WRITE_LAST_IMM if index else Opcode.WRITE_ONLY_IMM
            else:
                imm = 0
                opcode = Opcode.WRITE_LAST if index else Opcode.WRITE_ONLY
        commit(q.path, choice)
        evi = choice.evi
        tick = wire16(now)
        record.evi, record.tick, record.slot, record.end, record.rtx, record.size = evi, tick, slot, end, rtx, size
        entry = q.ev[evi]
        credit = add_credit(q.path, entry, evi, 1, q.config.path_credit)
        q.inflight += size
        bit = 1 << position
        q.out |= bit
        if rtx:
            q.lost ^= bit
            q.judge_rows |= 1 << (position >> 6)
            if psn == (q.unack_psn + 1) & M24:
                q.head_free = 0
            must_ask = True
        else:
            q.next_psn = (psn + 1) & M24
            q.unretired += 1
            q.sent_total = (q.sent_total + size) & M32
            if index == 0 and message.imm_valid:
                q.wimm_open += 1
            if end:
                q.msg_send = (q.msg_send + 1) & M16
                q.send_pkt = 0
            else:
                q.send_pkt = index + 1
            must_ask = not self.new_ready(q, self.cwnd_open(q))
        if a is None:
            a = int(must_ask)
        elif must_ask and not a:
            raise StepError(f"SEND of PSN {psn:#x}: the A bit must be set, it is a retransmission or no more new data can follow")
        q.tx_pending += 1
        if not q.probe_on:
            q.probe_on = 1
            q.probe_ref = now & M32
        return SendOut(
            rtx, psn, choice.plane, evi, entry.value, choice.fallback, opcode, a, message.laddr + offset & ALL64, plen, message.rqmsn,
            message.msn, message.raddr + offset & ALL64, message.rkey, message.length, imm, tick, credit,
        )  # fmt: skip

    def depart(
        self, qp: int, probe: int, psn: int, evi: int, send_tick: int, tick: int, dropped: int, read_error: int, now: int
    ) -> DepartOut:
        """A frame started to leave with timestamp ``tick``, or was lost inside the NIC (MRC-REQ-076, 077).

        ``evi``, ``send_tick``: what the SEND or PROBE step wrote, so that a late report does not touch a newer copy.
        """
        q = self.qp[qp]
        self.now = now
        if not q.tx_pending:
            raise StepError(f"DEPART, QP {qp}: nothing is on its way out")
        q.tx_pending -= 1
        if read_error:
            if q.state == QpState.RTS and q.fault is None:
                self.fail(q, WcStatus.LOCAL_MEMORY)
            return DepartOut(0)
        if dropped or q.state != QpState.RTS:
            return DepartOut(0)
        if probe:
            for slot in (q.tail_slot, q.ev_slot):
                if slot.evi == evi and slot.tick == send_tick:
                    slot.tick = tick
                    return DepartOut(1)
            return DepartOut(0)
        if q.usable(psn) and q.out & q.bit(psn):
            record = q.records[psn & q.window - 1]
            if record.evi == evi and record.tick == send_tick:
                record.tick = tick
                return DepartOut(1)
        return DepartOut(0)
