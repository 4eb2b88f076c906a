"""Steps of the requestor that follow a SACK or ACK, one PSN each: RETIRE and JUDGE."""

from __future__ import annotations

from .config import StepError
from .paths import add_credit, matched_since
from .req_base import ReqBase
from .req_results import JudgeOut, RetireOut
from .req_state import ALL64, M16, M24


class WindowSteps(ReqBase):
    """RETIRE, JUDGE."""

    def retire(self, qp: int, psn: int, now: int) -> RetireOut:
        """An acknowledged PSN leaves the window (MRC-REQ-068). Any acknowledged PSN may be next."""
        q = self._qp(qp, now, "RETIRE")
        bit = q.bit(psn)
        if not q.usable(psn) or not (q.out | q.lost) & bit:
            raise StepError(f"RETIRE, QP {qp}: PSN {psn:#x} is not unretired")
        if not q.is_acked(psn):
            raise StepError(f"RETIRE, QP {qp}: PSN {psn:#x} is not acknowledged (unack_psn {q.unack_psn:#x})")
        record = q.records[psn & q.window - 1]
        entry = q.ev[record.evi]
        was_lost = int(bool(q.lost & bit))
        if was_lost:
            q.inflight += record.size
            q.lost ^= bit
            credit = entry.credit
        else:
            q.out ^= bit
            credit = add_credit(q.path, entry, record.evi, -1, q.config.path_credit)
        q.sacked &= ~bit
        q.cover &= ~bit
        q.unretired -= 1
        if q.unretired:
            if psn == q.oldest:
                q.oldest = q.first(q.out | q.lost)
        else:
            q.oldest = q.next_psn
            q.inflight = 0
            q.rcvd_seen = (q.sent_total + 255 >> 8) & M24
        self.quiet(q)
        return RetireOut(psn, was_lost, record.evi, credit)

    def judge(self, qp: int, psn: int, now: int) -> JudgeOut:
        """Loss evidence turns an OUTSTANDING PSN into a LOST one (MRC-REQ-069, 154)."""
        q = self._qp(qp, now, "JUDGE")
        bit = q.bit(psn)
        row = (psn & q.window - 1) >> 6
        if not q.usable(psn) or not q.out & bit:
            raise StepError(f"JUDGE, QP {qp}: PSN {psn:#x} is not OUTSTANDING")
        if q.retire_bits() & ALL64 << 64 * row:
            raise StepError(f"JUDGE, QP {qp}: PSN {psn:#x} before an acknowledged PSN of its row is retired")
        record = q.records[psn & q.window - 1]
        if not q.cover & bit or not self.glob.reo_wnd < (q.ts[row] - record.tick & M16) < 0x8000:
            raise StepError(f"JUDGE, QP {qp}: no evidence that PSN {psn:#x} is lost (covered: {bool(q.cover & bit)}, SACK's tick "
                            f"{q.ts[row]:#x}, sent {record.tick:#x}, reo_wnd {self.glob.reo_wnd})")  # fmt: skip
        evi = record.evi
        credit = self.lose(q, psn)
        q.cover &= ~bit
        proved = int(not matched_since(q.ev[evi], record.tick))
        if proved:
            self.make_bad(q, evi, now)
        return JudgeOut(psn, evi, proved, credit)

    def judge_list(self, qp: int) -> list[int]:
        """PSNs that JUDGE may take now, oldest first."""
        q = self.qp[qp]
        if not q.judge_rows:
            return []
        retiring = q.retire_bits()
        candidates = q.cover & q.out
        found = 0
        for row in range(q.window >> 6):
            if not q.judge_rows >> row & 1:
                continue
            mask = ALL64 << 64 * row
            if retiring & mask:
                continue
            bits, any_here = candidates & mask, False
            ts = q.ts[row]
            while bits:
                low = bits & -bits
                bits ^= low
                if self.glob.reo_wnd < (ts - q.records[low.bit_length() - 1].tick & M16) < 0x8000:
                    found |= low
                    any_here = True
            if not any_here:
                q.judge_rows &= ~(1 << row)
        return q.psns(found) if found else []
