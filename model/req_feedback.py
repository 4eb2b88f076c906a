"""Steps of the requestor that feedback from the peer causes: SACK, NACK, ACK."""

from __future__ import annotations

from .config import StepError
from .paths import match, probe_answer, to_skip
from .req_base import ReqBase
from .req_results import AckOut, NackOut, SackOut
from .req_state import ALL64, HALF24, HALF32, M16, M24, M32, NOT_DROPPED, Feedback, ReqQp, expiry_ticks, s16, s24
from .spec import ANCIENT, MPR_UNIT, Drop, MFlag, NackReason, QpState, Syndrome, WcStatus

HOLD_REASONS = (NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE, NackReason.PSN_OOR_WINDOW)
KNOWN_REASONS = tuple(NackReason)
NAK_STATUS = {
    Syndrome.NAK_INVALID_REQUEST: WcStatus.REMOTE_INVALID_REQUEST,
    Syndrome.NAK_REMOTE_ACCESS: WcStatus.REMOTE_ACCESS,
    Syndrome.NAK_REMOTE_OPERATION: WcStatus.REMOTE_OPERATION,
}


class FeedbackSteps(ReqBase):
    """SACK, NACK, ACK."""

    def _refused(self, qp: int, now: int, known: int, addr_ok: int, pkey_ok: int) -> int:
        """The drop cause of feedback before its contents are looked at, counted, or 0xFF (MRC-REQ-078)."""
        self.now = now
        if not known:
            cause = Drop.UNKNOWN_QP
        elif self.qp[qp].state != QpState.RTS:
            cause = Drop.QP_ERROR if self.qp[qp].state == QpState.ERROR else Drop.QP_STATE
        elif not addr_ok:
            cause = Drop.ADDRESS
        elif not pkey_ok:
            cause = Drop.PKEY
        else:
            if self.qp[qp].fault is not None:
                raise StepError(f"feedback, QP {qp}: the QP_ERROR step that is due must come first")
            return NOT_DROPPED
        return self._drop(cause)

    def _drop(self, cause: Drop) -> int:
        self.drops[cause] += 1
        return int(cause)

    # --- SACK -----------------------------------------------------------------------------------------------------------------------
    def sack(self, qp: int, fields: Feedback, now: int, known: int = 1, addr_ok: int = 1, pkey_ok: int = 1) -> SackOut:
        """A SACK (MRC-REQ-079 to 084): in flight, window, path feedback, acknowledged bits and loss evidence."""
        drop = self._refused(qp, now, known, addr_ok, pkey_ok)
        if drop != NOT_DROPPED:
            return SackOut(drop)
        q = self.qp[qp]
        cack = fields.cack_psn
        ahead = s24(cack - q.unack_psn)
        if not -ANCIENT <= ahead <= s24(q.next_psn - 1 - q.unack_psn):
            return SackOut(self._drop(Drop.SACK_RANGE))
        if 0 < (fields.rcvd_bytes - (q.sent_total + 255 >> 8) & M24) < HALF24:
            return SackOut(self._drop(Drop.SACK_FORGED))
        result = SackOut()
        advance = fields.rcvd_bytes - q.rcvd_seen & M24
        if 0 < advance < HALF24:
            result.newly = advance << 8
            q.inflight -= result.newly
            q.rcvd_seen = fields.rcvd_bytes
        if ahead > 0:
            q.unack_psn = cack
            self.progress(q, now)
        edge = cack + (fields.mpr * MPR_UNIT if fields.mpr else q.config.req_mpr) & M24
        if edge - q.right_edge & M24 < HALF24:
            q.right_edge = edge
        self._path_feedback(q, fields, now, result)
        self._store_bits(q, cack, fields)
        q.probe_ref = now & M32
        self.quiet(q)
        return result

    def _path_feedback(self, q: ReqQp, fields: Feedback, now: int, result: SackOut) -> None:
        """EV, match, RTT and health from the packet or probe that caused the SACK (MRC-REQ-082, 083)."""
        tick = 0
        evi = -1
        if fields.pr:
            slot = q.ev_slot if fields.probe_id >> 15 & 1 else q.tail_slot
            if slot.valid and slot.id == fields.probe_id & M16:
                slot.valid = 0
                evi, tick = slot.evi, slot.tick
        else:
            psn = fields.cack_psn + s16(fields.ack_psn_offset) & M24
            if q.usable(psn):
                record = q.records[psn & q.window - 1]
                evi, tick = record.evi, record.tick
        if evi < 0 or not q.is_value(evi, fields.entropy):
            self.drops[Drop.EV_UNMATCHED] += 1
            return
        entry = q.ev[evi]
        result.evi, result.ev_found = evi, 1
        echo = fields.echo_timestamp
        if echo and echo == tick:
            result.matched = 1
            match(entry, echo, now)
            if not q.matched:
                q.age_at = now + (1 << 13)
            q.matched |= 1 << evi
        mflag = fields.mflag
        if fields.pr and q.path.planes[evi // q.path.evs].bad >> evi % q.path.evs & 1:
            probe_answer(q.path, entry, evi, mflag)
        elif mflag == MFlag.SKIP_ONCE:
            to_skip(q.path, evi)
        elif mflag == MFlag.ALWAYS_SKIP:
            self.make_bad(q, evi, now)

    def _store_bits(self, q: ReqQp, cack: int, fields: Feedback) -> None:
        """Acknowledged bits and loss evidence (MRC-REQ-080, 084), of the at most W PSNs between unack_psn and next_psn."""
        low = q.unack_psn + 1 & M24
        count = s24(q.next_psn - low)
        base = cack + s16(fields.sack_offset) & M24
        skip = s24(low - base)  # bits of the map below low
        if skip >= 64 or count <= 0:
            inside = 0
        elif skip > 0:
            inside = ALL64 >> skip << skip
        else:
            inside = ALL64
        over = s24(base - q.next_psn) + 64  # bits of the map from next_psn on
        if over > 0:
            inside &= ALL64 >> over
        window = q.window
        at = base & window - 1
        full = (1 << window) - 1
        if inside:
            ones = (fields.sack_bitmap & inside) << at
            q.sacked |= (ones | ones >> window) & full & (q.out | q.lost)
        echo = fields.echo_timestamp
        if not echo:
            return
        touched = inside << at
        touched = (touched | touched >> window) & full
        covered = 0
        if inside and not self.glob.evidence_first_only:
            covered = (inside & ~fields.sack_bitmap) << at
            covered = (covered | covered >> window) & full
        head = cack + 1 & M24
        if 0 <= s24(head - low) < count:
            bit = q.bit(head)
            touched |= bit
            covered |= bit
        row_mask = ALL64
        for row in range(window >> 6):
            if touched & row_mask:
                q.ts[row] = echo
                q.cover = q.cover & ~row_mask | covered & row_mask
                q.judge_rows |= 1 << row
            row_mask <<= 64

    # --- NACK -----------------------------------------------------------------------------------------------------------------------
    def nack(self, qp: int, fields: Feedback, now: int, known: int = 1, addr_ok: int = 1, pkey_ok: int = 1) -> NackOut:
        """A NACK of one OUTSTANDING copy (MRC-REQ-085, 086); anything else is ignored and counted."""
        drop = self._refused(qp, now, known, addr_ok, pkey_ok)
        if drop != NOT_DROPPED:
            return NackOut(drop)
        q = self.qp[qp]
        psn, reason, echo = fields.nack_psn, fields.nack_reason, fields.echo_timestamp
        if reason not in KNOWN_REASONS or not q.usable(psn) or not q.out & q.bit(psn) or q.is_acked(psn):
            return NackOut(self._drop(Drop.NACK_IGNORED))
        record = q.records[psn & q.window - 1]
        evi = record.evi
        if not q.is_value(evi, fields.entropy) or (echo and echo != record.tick):
            return NackOut(self._drop(Drop.NACK_IGNORED))
        if reason == NackReason.UNEXP_EVENT:
            self.fail(q, WcStatus.REMOTE_OPERATION)
            return NackOut(NOT_DROPPED, evi, q.ev[evi].credit)
        if reason == NackReason.TRIMMED:
            to_skip(q.path, evi)
        credit = self.lose(q, psn)
        quarter = expiry_ticks(q.config, 1)
        if reason in HOLD_REASONS:
            q.hold = 1
            q.hold_until = (now + (self.glob.nack_retx_time or quarter >> 2)) & M32
        if psn == (q.unack_psn + 1) & M24 and not (q.nack_block and (now - q.nack_block_until) & M32 >= HALF32):
            q.retry = min(q.retry + 1, 255)
            q.nack_block = 1
            q.nack_block_until = (now + quarter) & M32
            if self.limit_reached(q):
                self.fail(q, WcStatus.RETRY_EXCEEDED)
        q.probe_ref = now & M32
        return NackOut(NOT_DROPPED, evi, credit)

    # --- ACK ------------------------------------------------------------------------------------------------------------------------
    def ack(self, qp: int, fields: Feedback, now: int, known: int = 1, addr_ok: int = 1, pkey_ok: int = 1) -> AckOut:
        """A transport ACK completes every message up to its PSN; a NAK ends the QP (MRC-REQ-087, 088)."""
        drop = self._refused(qp, now, known, addr_ok, pkey_ok)
        if drop != NOT_DROPPED:
            return AckOut(drop)
        q = self.qp[qp]
        psn = fields.psn
        if fields.syndrome == Syndrome.ACK:
            counter = q.msg_done
            imms = 0
            while counter != q.msg_send:
                message = q.message_of(counter)
                imms += message.imm_valid
                counter = (counter + 1) & M16
                if message.last_psn == psn:
                    q.msg_done = counter
                    q.wimm_open -= imms
                    if 0 < (psn - q.unack_psn & M24) < HALF24:
                        q.unack_psn = psn
                    self.progress(q, now)
                    q.probe_ref = now & M32
                    self.quiet(q)
                    return AckOut()
        elif fields.syndrome in NAK_STATUS and not q.idle and 0 < (q.next_psn - psn & M24) < HALF24:
            counter = q.msg_done
            while counter != q.msg_tail:
                message = q.message_of(counter)
                if (psn - message.first_psn) & M24 < message.packets:
                    self.fail(q, NAK_STATUS[Syndrome(fields.syndrome)], counter)
                    return AckOut()
                counter = (counter + 1) & M16
        return AckOut(self._drop(Drop.ACK_IGNORED))
