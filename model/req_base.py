"""What all steps of the requestor share: the QPs of one NIC, and the rules that several steps apply."""

from __future__ import annotations

from .config import GlobalConfig, QpConfig, Sizes, StepError
from .path_events import EvEntry, add_credit, make_path, to_bad
from .req_state import M24, M32, Message, ReqQp, SendRecord, expiry_ticks
from .spec import EXP_FOREVER, Drop, QpState, WcStatus


class ReqBase:
    """What the steps share: all QPs of one NIC, and rules that several steps apply. See :class:`model.requestor.Requestor`."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.glob = GlobalConfig()
        self.qp = [self._fresh() for _ in range(sizes.qps)]
        self.up = (1 << sizes.planes) - 1  # ports up: administrative state and link
        self.drops = [0] * len(Drop)
        self.now = 0  # tick of the newest step

    def _fresh(self, records: list[SendRecord] | None = None, config: QpConfig | None = None) -> ReqQp:
        """A QP after RESET. The records' contents stay; only the bits say that they mean something."""
        sizes = self.sizes
        return ReqQp(
            config=config or QpConfig(), path=make_path(sizes.planes, sizes.evs), ev=[EvEntry() for _ in range(sizes.total_evs)],
            messages=[Message() for _ in range(sizes.msg_slots)], records=records or [SendRecord() for _ in range(sizes.window)],
            window=sizes.window, ts=[0] * (sizes.window // 64),
        )  # fmt: skip

    def _qp(self, qp: int, now: int, what: str) -> ReqQp:
        """The QP of a step that needs RTS and no QP_ERROR due before it."""
        q = self.qp[qp]
        self.now = now
        if q.state != QpState.RTS:
            raise StepError(f"{what}, QP {qp}: state is {QpState(q.state).name}, RTS is needed")
        if q.fault is not None:
            raise StepError(f"{what}, QP {qp}: QP_ERROR with {WcStatus(q.fault[0]).name} must come first")
        return q

    @staticmethod
    def limit_reached(q: ReqQp) -> bool:
        """Whether the retry counter is used up (MRC-REQ-093)."""
        return q.config.exp_cnt != EXP_FOREVER and q.retry >= q.config.linear_cnt + q.config.exp_cnt

    @staticmethod
    def fail(q: ReqQp, cause: WcStatus, msg: int | None = None) -> None:
        """A QP_ERROR step with ``cause`` must follow; ``msg``: the message that ends with it, by default the oldest unfinished one."""
        q.fault = (int(cause), q.msg_done if msg is None else msg)

    @staticmethod
    def progress(q: ReqQp, now: int) -> None:
        """unack_psn or msg_done advanced: counters restart, and the timer (MRC-REQ-091)."""
        q.expiry = q.retry = q.nack_block = q.head_free = 0
        if q.msg_done == q.msg_tail:
            q.timer_on = 0
        else:
            q.timer_deadline = (now + expiry_ticks(q.config, 1)) & M32

    @staticmethod
    def quiet(q: ReqQp) -> None:
        """After SACK, ACK, RETIRE: nothing unfinished and nothing unacknowledged stops the probe timer and the hold (MRC-REQ-096)."""
        if q.msg_done == q.msg_tail and q.unack_psn == (q.next_psn - 1) & M24:
            q.probe_on = q.want_probe = q.hold = 0

    @staticmethod
    def make_bad(q: ReqQp, evi: int, now: int) -> None:
        """An EV to ASSUMED_BAD with demotion; the first one arms the EV probes (MRC-REQ-097, 147). A new run of answers counts from 0."""
        if to_bad(q.path, evi, q.config.ev_min_active):
            q.ev[evi].probe_ok = 0
            if not q.bad_probe_on:
                q.bad_probe_on = 1
                q.bad_probe_at = (now + expiry_ticks(q.config, 1)) & M32

    @staticmethod
    def lose(q: ReqQp, psn: int) -> int:
        """OUTSTANDING -> LOST: credit back, bytes out of flight; returns credit_used of its EV (MRC-REQ-067)."""
        bit = q.bit(psn)
        record = q.records[psn & q.window - 1]
        q.out &= ~bit
        q.lost |= bit
        q.inflight -= record.size
        return add_credit(q.path, q.ev[record.evi], record.evi, -1, q.config.path_credit)
