"""What the step modules of the requestor share: working registers, memories, helpers, commit. See sequencer.py for the order of things."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, enum

from hdl.params import Params
from hdl.requestor.bits import bind, ev_of, plane_of, serial
from hdl.requestor.contexts import Contexts, RequestorLayouts
from hdl.requestor.evchange import EvChange, EvOp
from hdl.requestor.spray import Spray
from hdl.trace import TraceLayouts
from model import spec


class Fetch(enum.Enum, shape=3):
    """For which step a packet's record, row, EV and message are fetched."""

    DEPART = 0
    SACK = 1
    NACK = 2
    RETIRE = 3
    JUDGE = 4
    TIMEOUT = 5
    SEND = 6


def one_more(counter: Signal) -> Value:
    """``counter`` + 1, staying at the end of its range."""
    return Mux(counter.all(), counter, counter + 1)[:len(counter)]


class Core(Contexts):
    """Registers and helpers of the sequencer. One instance per :class:`hdl.requestor.requestor.Requestor`.

    Conventions: every helper that takes ``m`` is called inside a state and adds statements to it. A step ends with :meth:`commit` in the clock
    in which the last of its state is assigned; the record shows the registers of the clock after.
    """

    def __init__(self, m: Module, params: Params, ports: Any) -> None:
        self.params = params
        self.layouts = RequestorLayouts(params)
        super().__init__(m, params, self.layouts)
        self.ports = ports
        self.m = m
        self.logic = m.submodules.logic = Module()  # combinational units that run whatever the state
        p = params

        self.now = Signal(32)
        self.globals = Signal(self.layouts.global_config)
        self.admin = Signal(p.planes, init=(1 << p.planes) - 1)  # administrative state of the ports
        self.port_up = Signal(p.planes)
        self.walk_due = Signal()
        self.age_evi = Signal(p.evi_bits)
        self.send_rtx = Signal()
        self.send_cwnd = Signal()
        self.room = Signal(p.planes)

        # Saves: raised in a step, the write happens in the next clock.
        self.save = Signal()
        self.save_row = Signal()
        self.save_ev = Signal()
        self.save_record = Signal()
        self.row_at = Signal(p.row_bits)
        self.ev_at = Signal(p.evi_bits)
        self.psn = Signal(24)  # the packet that a step is about
        self.config_write = Signal()
        self.value_write = Signal()
        self.value_data = Signal(32)
        self.msg_write = Signal()
        self.msg_data = Signal(self.layouts.message)
        self.msg_slot = Signal(p.slot_bits)

        # Fetch of a packet.
        self.fetch = Signal(Fetch)
        self.fetch_slot = Signal()  # EV index comes from fetch_evi, not from the record
        self.fetch_evi = Signal(p.evi_bits)
        self.fetch_new = Signal()  # message = the one being sent
        self.size = Signal(14)
        self.ev_good, self.ev_skip, self.ev_bad, self.ev_active = (Signal(name=n) for n in ("ev_good", "ev_skip", "ev_bad", "ev_active"))

        # What a SACK or ACK leaves to be retired and judged (background.py).
        self.sweep_from = Signal(24)
        self.sweep_sack = Signal()
        self.base = Signal(24)  # PSN of bitmap bit 0

        # Components.
        self.spray = Spray(params)
        self.evchange = EvChange(params)
        m.submodules.spray = self.spray
        m.submodules.evchange = self.evchange
        self.need_credit = Signal()
        self.masked = Signal()
        self.ev_op = Signal(EvOp)

        # Work to do, a bit per QP. Hints: execute checks again.
        self.send_work = Signal(p.qps)
        self.complete_work = Signal(p.qps)
        self.error_out = Signal(p.qps)
        self.live = Signal(p.qps)  # state other than RESET and INIT

        # Outputs.
        self.tx_valid = Signal()
        self.tx = Signal(self.layouts.tx)
        self.completion_valid = Signal()
        self.completion = Signal(self.layouts.completion)
        self.status_valid = Signal()
        self.status = Signal(8)
        self.drop_valid = Signal()
        self.drop_cause = Signal(8)

        # Errors found by a step, executed right after it.
        self.error_cause = Signal(8)
        self.error_msg = Signal(16)
        self.error_tell = Signal()  # the responder has to know
        self.reset_wait = Signal()  # a RESET command waits for departures
        self.reset_retry = Signal()  # and one has come
        self.cmd_qp: Value = ports.cmd.payload.qp[:p.qp_bits]

        # Commit.
        self.commit_now = Signal()
        self.commit_kind = Signal(8)
        self.seq = Signal(32)
        self.body: Any = None
        if p.trace:
            self.body = Signal(data.UnionLayout(TraceLayouts(params).req_bodies))
        self._derive()
        self._wire()

    # --- derived values ---------------------------------------------------------------------------------------------------------------
    def _derive(self) -> None:
        """Values that several steps read."""
        m, ctx = self.logic, self.ctx
        # The oldest unacknowledged PSN, if one was sent.
        self.head = bind(m, (ctx.unack_psn + 1)[:24])
        self.all_acked = bind(m, self.head == ctx.next_psn)
        self.idle = bind(m, ctx.msg_done == ctx.msg_tail)
        # A new PSN finds room in the record ring and in the peer's window.
        span = (ctx.next_psn - self.head)[:24]
        self.in_window = bind(m, (span < self.params.window) & (serial(ctx.right_edge - ctx.next_psn) >= 0))
        mtu = Const(256) << self.config.mtu
        self.cwnd_ok = bind(m, Mux(self.globals.cwnd_rule_below, ctx.inflight < self.config.cwnd, ctx.inflight + mtu <= self.config.cwnd))
        # ceil(sent_total / 256) mod 2^24
        self.sent_units = bind(m, (ctx.sent_total + 255)[8:32])
        # Low 16 bits of now as a wire timestamp: 0 is sent as 1.
        self.wire_now = bind(m, Cat(self.now[0] | (self.now[:16] == 0), self.now[1:16]))
        self.t1 = bind(m, self.interval(Const(1, 8)))
        self.t_next = bind(m, self.interval((ctx.expiry + 1)[:9]))
        # The next retry is the last one: the QP fails.
        limit = self.config.linear_cnt + self.config.exp_cnt
        self.retry_limit = bind(m, (self.config.exp_cnt != spec.EXP_FOREVER) & (ctx.retry + 1 >= limit))
        # A RESET of this QP waits: it sends nothing more.
        self.blocked = bind(m, self.reset_wait & (self.cmd_qp == self.qp))

    def interval(self, expiry: Value) -> Value:
        """T(expiry) in ticks."""
        beyond = Mux(expiry > self.config.linear_cnt, expiry - self.config.linear_cnt, 0)
        exponent = bind(self.logic, self.config.timer_exp + beyond)
        capped = bind(self.logic, Mux(exponent > spec.MAX_TIMER_EXP, spec.MAX_TIMER_EXP, exponent)[:5])
        return Cat(Const(0, 3), (capped == i for i in range(spec.MAX_TIMER_EXP + 1)))

    def reached(self, deadline: Value) -> Value:
        """``now`` is at or after ``deadline`` (32-bit ticks)."""
        return ~(self.now - deadline)[31]

    def entropy_equal(self, entropy: Value, value: Value) -> Value:
        """The echo names this EV value; IPv4 carries the low half only."""
        return (entropy[:16] == value[:16]) & (self.config.ipv4 | (entropy[16:] == value[16:]))

    def after(self, psn: Value, other: Value) -> Value:
        """psn > other, serial."""
        return serial(psn - other) > 0

    def usable(self, psn: Value) -> Value:
        """``psn`` is one of the W newest PSNs sent: its record may be used."""
        return (self.ctx.next_psn - 1 - psn)[:24] < self.params.window

    # --- statements ---------------------------------------------------------------------------------------------------------------------
    def commit(self, kind: spec.Kind, **fields: ValueLike) -> None:
        """Ends a step: record of ``kind`` with the body ``fields``."""
        m = self.m
        m.d.comb += [self.commit_now.eq(1), self.commit_kind.eq(int(kind)), self.save.eq(1)]
        if self.body is not None:
            body = self.body[kind.name.lower()]
            m.d.comb += [Value.cast(body[name]).eq(Value.cast(value)) for name, value in fields.items()]

    def drop(self, cause: ValueLike) -> None:
        """Counts a Drop cause."""
        self.m.d.comb += [self.drop_valid.eq(1), self.drop_cause.eq(cause)]

    def follow_error(self, cause: ValueLike, msg: Value | None = None, tell: bool = True) -> None:
        """A QP_ERROR step comes next."""
        m = self.m
        m.d.sync += [
            self.error_cause.eq(cause), self.error_msg.eq(self.ctx.msg_done if msg is None else msg), self.error_tell.eq(int(tell)),
        ]  # fmt: skip
        m.next = "QP_ERROR"

    def start_fetch(self, step: Fetch, psn: Value) -> None:
        """Loads record, row, EV and message of ``psn``; the state ``<step>_GOT`` follows."""
        m = self.m
        m.d.sync += [self.fetch.eq(step), self.psn.eq(psn), self.fetch_slot.eq(0), self.fetch_new.eq(0)]
        m.next = "FETCH"

    def start_ev(self, op: EvOp | Value, then: str) -> None:
        """Starts a change of EV ``ev_at``; state ``then`` waits with :meth:`ev_done`."""
        m = self.m
        m.d.sync += self.ev_op.eq(op)
        m.d.sync += self.evchange.start.eq(1)
        m.next = then

    def take_ev_change(self) -> None:
        """Takes the row of a finished change, and starts the EV probes when an EV became ASSUMED_BAD. Inside ``If(evchange.done)``."""
        m, ctx = self.m, self.ctx
        m.d.sync += Value.cast(self.path).eq(self.evchange.next_path)
        with m.If(self.evchange.became_bad):
            m.d.sync += self.ev.probe_ok.eq(0)
            m.d.comb += self.save_ev.eq(1)
            with m.If(~ctx.bad_probe_on):
                m.d.sync += [ctx.bad_probe_on.eq(1), ctx.bad_probe_at.eq(self.now + self.t1)]

    def progress(self, unfinished: Value) -> None:
        """unack_psn or msg_done advanced; ``unfinished`` tells whether a message is unfinished afterwards."""
        m, ctx = self.m, self.ctx
        m.d.sync += [ctx.expiry.eq(0), ctx.retry.eq(0), ctx.nack_block.eq(0), ctx.head_free.eq(0)]
        with m.If(unfinished):
            m.d.sync += ctx.timer_deadline.eq(self.now + self.t1)
        with m.Else():
            m.d.sync += ctx.timer_on.eq(0)

    def settle(self) -> None:
        """Nothing unfinished and nothing unacknowledged: probes and hold end."""
        m, ctx = self.m, self.ctx
        with m.If(self.idle & self.all_acked):
            m.d.sync += [ctx.probe_on.eq(0), ctx.want_probe.eq(0), ctx.hold.eq(0)]

    def put_credit(self, credit: Value) -> None:
        """New credit_used of EV ``ev_at`` (entry in ``ev``), and its full bit."""
        m, p = self.m, self.params
        m.d.sync += self.ev.credit.eq(credit)
        m.d.comb += self.save_ev.eq(1)
        full = credit[:16] >= self.config.path_credit
        for n in range(p.planes):
            with m.If(plane_of(p, self.ev_at) == n):
                m.d.sync += self.path.planes[n].full.bit_select(ev_of(p, self.ev_at), 1).eq(full)

    def lose(self) -> Value:
        """OUTSTANDING -> LOST of the fetched packet ``psn``. Returns the credit left."""
        m, ctx, aux = self.m, self.ctx, self.aux
        credit = (self.ev.credit - 1)[:16]
        self.put_credit(credit)
        m.d.comb += self.save_row.eq(1)
        m.d.sync += [
            ctx.inflight.eq(ctx.inflight - self.size),
            self.row.out.bit_select(self.psn[:6], 1).eq(0), self.row.lost.bit_select(self.psn[:6], 1).eq(1),
            aux.lost_cnt.eq(aux.lost_cnt + 1),
        ]  # fmt: skip
        with m.If((aux.lost_cnt == 0) | self.after(aux.lost_ptr, self.psn)):
            m.d.sync += aux.lost_ptr.eq(self.psn)
        return credit

    def wake(self) -> None:
        """This QP may be able to send."""
        self.m.d.sync += self.send_work.bit_select(self.qp, 1).eq(1)

    # --- wiring -----------------------------------------------------------------------------------------------------------------------------
    def _wire(self) -> None:
        m = self.m
        save, save_row, save_ev, save_record = (Signal(name=f"{n}_now") for n in ("save", "row", "ev", "record"))
        m.d.sync += [save.eq(self.save), save_row.eq(self.save_row), save_ev.eq(self.save_ev), save_record.eq(self.save_record)]
        m.d.sync += self.evchange.start.eq(0)
        m.d.sync += self.spray.start.eq(0)
        evi = self.at_ev(self.ev_at)
        self.qp_ram.connect_write(m, save, self.qp, Cat(self.ctx, self.aux))
        self.path_ram.connect_write(m, save, self.qp, Value.cast(self.path))
        self.config_ram.connect_write(m, self.config_write, self.qp, Value.cast(self.config))
        self.value_ram.connect_write(m, self.value_write, evi, self.value_data)
        self.ev_ram.connect_write(m, save_ev, evi, Value.cast(self.ev))
        self.msg_ram.connect_write(m, self.msg_write, Cat(self.msg_slot, self.qp), Value.cast(self.msg_data))
        self.record_ram.connect_write(m, save_record, self.at_psn(self.psn), Value.cast(self.record))
        self.row_ram.connect_write(m, save_row, Cat(self.row_at, self.qp), Value.cast(self.row))
        m.d.sync += self.config_write.eq(0)
        m.d.sync += self.value_write.eq(0)
        m.d.sync += self.msg_write.eq(0)
        m.d.comb += [
            Value.cast(self.spray.path).eq(self.path), self.spray.up.eq(self.port_up), self.spray.room.eq(self.room),
            self.spray.need_credit.eq(self.need_credit), self.spray.masked.eq(self.masked), self.spray.mask_evi.eq(self.record.evi),
            self.spray.in_order.eq(self.globals.spray_in_order),
            Value.cast(self.evchange.path).eq(self.path), self.evchange.evi.eq(self.ev_at), self.evchange.op.eq(self.ev_op),
            self.evchange.ev_min_active.eq(self.config.ev_min_active),
        ]  # fmt: skip

    def at_ev(self, evi: Value) -> Value:
        """Address of an EV of the loaded QP."""
        return Cat(evi, self.qp)

    def at_psn(self, psn: Value) -> Value:
        """Address of a send record of the loaded QP."""
        return Cat(psn[:self.params.window_bits], self.qp)

    def at_row(self, row: Value) -> Value:
        """Address of the bitmap row with the logical number ``row`` = PSN[6:] of the loaded QP."""
        return Cat(row[:self.params.row_bits], self.qp)

    def at_msg(self, counter: Value) -> Value:
        """Address of a message of the loaded QP by its counter or slot."""
        return Cat(counter[:self.params.slot_bits], self.qp)
