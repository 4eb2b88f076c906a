"""A requestor under test: one QP in RTS, a tiny ideal responder, and the invariants of facts 12 that concern the requestor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from model.config import Config, EvConfig, GlobalConfig, QpConfig, Sizes, WorkRequest
from model.req_results import CompleteOut, SendOut
from model.req_state import DATA_OVERHEAD, IMM_BYTES
from model.requestor import FeedbackFields, ReqQp, Requestor
from model.spec import END_OPCODES, IMM_OPCODES, Command, Health, Kind, PostStatus, QpState, Syndrome

SIZES = Sizes(qps=2, planes=2, evs=4, active_evs=4, window=128)
EV_BASE = 0xE000_0000  # value of EV i: EV_BASE + i


def bring_up(requestor: Requestor, qp: int, config: QpConfig, evs: list[EvConfig] | None = None) -> None:
    """RESET -> RTS with every EV ACTIVE and GOOD, or as ``evs`` says."""
    total = requestor.sizes.total_evs
    if evs is None:
        evs = [EvConfig(EV_BASE + i, 1, Health.GOOD) for i in range(total)]
    steps: list[tuple[Command, int, Config | int]] = [(Command.MODIFY, 0, QpState.INIT), (Command.SET_QP, 0, config)]
    steps += [(Command.SET_EV, i, ev) for i, ev in enumerate(evs)]
    steps += [(Command.MODIFY, 0, QpState.RTR), (Command.MODIFY, 0, QpState.RTS)]
    for op, index, data in steps:
        assert requestor.control(op, qp, index, data, 0).status == PostStatus.OK


def data_size(out: SendOut) -> int:
    """UDP length + 40 of a data packet, worked out from what is on the wire."""
    return DATA_OVERHEAD + -(-out.plen // 4) * 4 + (IMM_BYTES if out.opcode in IMM_OPCODES else 0)


@dataclass
class Peer:
    """The ideal responder's window: what arrived, and the feedback about it. PSNs here are 24-bit."""

    cack: int
    mpr: int = 1
    above: set[int] = field(default_factory=set)
    total: int = 0  # bytes of new packets
    arrivals: list[tuple[int, int]] = field(default_factory=list)  # PSN, size, in order of arrival
    ends: list[int] = field(default_factory=list)  # message ends, arrived or not, in order of PSN distance
    sizes: dict[int, int] = field(default_factory=dict)
    seen_ends: set[int] = field(default_factory=set)
    done: int | None = None  # newest message end <= cack

    def arrive(self, out: SendOut) -> bool:
        """A data packet; True when it is new."""
        distance = (out.psn - self.cack) & 0xFFFFFF
        if distance >= 1 << 23 or distance == 0 or out.psn in self.above:
            return False
        self.above.add(out.psn)
        size = data_size(out)
        self.total += size
        self.arrivals.append((out.psn, size))
        if out.opcode in END_OPCODES:
            self.seen_ends.add(out.psn)
        while (self.cack + 1) & 0xFFFFFF in self.above:
            self.cack = (self.cack + 1) & 0xFFFFFF
            self.above.discard(self.cack)
            if self.cack in self.seen_ends:
                self.done = self.cack
        return True

    def sack(self, out: SendOut | None = None, tick: int = 0, mflag: int = 0, base: int | None = None, **changes: int) -> FeedbackFields:
        """A SACK caused by the packet ``out`` sent at ``tick``; ``base``: of the bitmap, by default ePSN."""
        base = (self.cack + 1) & 0xFFFFFF if base is None else base & 0xFFFFFF
        bits = sum(1 << i for i in range(64) if (base + i) & 0xFFFFFF in self.above)
        fields = FeedbackFields(
            psn=self.cack, mflag=mflag, ack_psn_offset=0 if out is None else (out.psn - self.cack) & 0xFFFF,
            entropy=0 if out is None else out.ev, cack_psn=self.cack, mpr=self.mpr, sack_offset=(base - self.cack) & 0xFFFF,
            sack_bitmap=bits, echo_timestamp=tick, rcvd_bytes=-(-self.total // 256) & 0xFFFFFF,
        )  # fmt: skip
        return replace(fields, **changes)

    def ack(self) -> FeedbackFields | None:
        """The newest transport ACK."""
        return None if self.done is None else FeedbackFields(psn=self.done, syndrome=Syndrome.ACK)


class Bench:
    """One QP in RTS with convenient steps. ``now`` moves only by :meth:`wait`, ``settle`` runs after each feedback."""

    def __init__(self, sizes: Sizes = SIZES, *, evs: list[EvConfig] | None = None, glob: GlobalConfig | None = None, **config: int) -> None:
        self.requestor = Requestor(sizes)
        if glob is not None:
            self.requestor.control(Command.SET_GLOBAL, 0, 0, glob, 0)
        base = {"mtu": 0, "sq_psn": 100, "path_credit": 128, "cwnd": (1 << 24) - 1}
        self.config = QpConfig(**(base | config))
        bring_up(self.requestor, 0, self.config, evs)
        self.now = 1000
        self.room = (1 << sizes.planes) - 1
        self.peer = Peer((self.config.sq_psn - 1) & 0xFFFFFF)
        self.completions: list[CompleteOut] = []
        self.posted = 0

    @property
    def q(self) -> ReqQp:
        return self.requestor.qp[0]

    def wait(self, ticks: int = 1) -> None:
        self.now += ticks

    def post(self, length: int, imm: int | None = None, **fields: int) -> int:
        """Posts a message; its status."""
        wr = WorkRequest(imm_valid=int(imm is not None), laddr=0x10_0000, raddr=0x2000_0000, length=length, rkey=0xAB, imm=imm or 0,
                         wr_id=self.posted)  # fmt: skip
        status = self.requestor.post(0, replace(wr, **fields), self.now).status
        self.posted += status == PostStatus.OK
        return status

    def send(self, **choices: int) -> SendOut:
        """One SEND step, and the frame departs at once."""
        out = self.requestor.send(0, self.now, self.room, **choices)
        self.depart(out)
        return out

    def depart(self, out: SendOut, **changes: int) -> int:
        values = {"probe": 0, "psn": out.psn, "evi": out.evi, "send_tick": out.send_tick, "tick": out.send_tick, "dropped": 0}
        values |= {"read_error": 0}
        return self.requestor.depart(0, **(values | changes), now=self.now).applied

    def send_all(self) -> list[SendOut]:
        """Sends until nothing more may be sent."""
        found = []
        while self.requestor.can_send(0, self.now, self.room):
            found.append(self.send())
        return found

    def tick_of(self, out: SendOut) -> int:
        return self.q.records[out.psn % self.q.window].tick

    def sack(self, out: SendOut | None = None, tick: int | None = None, settle: bool = True, **fields: int) -> object:
        """A SACK of what the peer holds; ``tick`` by default that of ``out``'s record."""
        tick = (self.tick_of(out) if out is not None else 0) if tick is None else tick
        result = self.requestor.sack(0, self.peer.sack(out, tick, **fields), self.now)
        if settle:
            self.settle()
        return result

    def settle(self) -> None:
        self.completions += self.requestor.settle(0, self.now)

    def kinds(self) -> list[Kind]:
        return [due.kind for due in self.requestor.pending(0, self.now, self.room)]

    def check(self) -> None:
        """Invariants of the state (facts 12: 5, 9, 12, 17; credit)."""
        check_state(self.requestor, 0)


def check_state(requestor: Requestor, qp: int) -> None:
    """Facts 12: what holds between any two steps in RTS."""
    q = requestor.qp[qp]
    assert not q.out & q.lost
    unretired = (q.out | q.lost).bit_count()
    assert q.unretired == unretired
    assert not q.sacked & ~(q.out | q.lost)
    assert (q.right_edge - (q.next_psn - 1)) & 0xFFFFFF < 1 << 23, "9: beyond right_edge"
    assert q.wimm_open <= q.config.peer_max_wimm
    names = [q.records[p].evi for p in range(q.window) if q.out >> p & 1]
    for evi, entry in enumerate(q.ev):
        assert entry.credit == names.count(evi)
        assert (q.path.planes[evi // q.path.evs].full >> evi % q.path.evs & 1) == (entry.credit >= q.config.path_credit)
    for row in q.path.planes:
        assert not (row.good & row.skip or row.good & row.bad or row.skip & row.bad)
    if q.state == QpState.RTS and q.fault is None:
        assert q.timer_on == (q.msg_done != q.msg_tail), "17: a timer runs while a message is unfinished"
