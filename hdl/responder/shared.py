"""What the steps of the responder share: the loaded QP, the memories, the answer queue, and how a step commits.

The sequencer executes one step at a time. A step works on ``ctx`` (the loaded copy of the QP's context), and *commits* in its last clock:
in the clock after that the context is stored and, with ``params.trace``, the commit record is shown. A chain of steps (RECEIVE, its ADVANCEs and
RECV_COMPLETEs, QP_ERROR) keeps the context loaded. Hazard: the store of a commit in clock t reaches the memory at the end of t + 1; the next
context is asked for in t + 2 at the earliest (IDLE chooses in t + 1), so a read never meets the store of the step before.
"""

from __future__ import annotations

import enum as py_enum
from typing import Any

from amaranth.hdl import Const, Module, Signal, Value, ValueLike
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFOBuffered

from hdl.params import Params
from hdl.responder.bits import first_one, set_flag
from hdl.responder.contexts import CONFIG, GLOBAL_BITS, FlushWalk, Picker, RspLayouts, Table
from hdl.trace import TraceLayouts
from model import spec
from model.spec import QpState

NOT_DROPPED = 0xFF
HOLD_CLOCKS = 15  # pause after an attempt that had to wait, so that others get their turn


class Job(py_enum.IntEnum):
    """What the sequencer loaded a context for."""

    ERROR = 0
    COMMAND = 1
    PORT = 2
    FOLLOW = 3
    FLUSH = 4
    ACK = 5
    ANSWER = 6
    RX = 7


class Shared:
    """Registers and memories between the states of the sequencer; created once per Responder."""

    def __init__(self, params: Params, ports: Any) -> None:
        p = self.p = params
        lay = self.layouts = RspLayouts(p)
        self.ports = ports
        flags = 1 << p.qp_bits
        # the loaded QP
        self.job = Signal(Job)
        self.qp = Signal(p.qp_bits)
        self.now = Signal(32)  # tick of the step
        self.ctx = Signal(lay.rsp_ctx)
        self.hid = Signal(lay.hidden)
        self.cfg = Signal(CONFIG)
        self.glob = Signal(GLOBAL_BITS)
        self.store = Signal()  # the context is stored in this clock
        self.epsn = Signal(spec.PSN_BITS)  # cack_psn + 1
        self.live = Signal()  # the loaded QP is in RTR or RTS
        # of all QPs, one flag each
        self.live_set = Signal(flags)  # RTR or RTS
        self.busy_set = Signal(flags)  # neither RESET nor INIT
        self.follow_set = Signal(flags)  # RECV_COMPLETE steps wait: no RECEIVE, no EMIT before them
        self.ack_set = Signal(flags)  # an ACK or NAK waits to leave
        self.peer_set = Signal(flags)  # the requestor has to be told of an error
        # memories
        self.contexts = Table(lay.word, p.qp_bits)
        self.configs = Table(CONFIG, p.qp_bits)
        self.rows = Table(lay.row, p.qp_bits + p.row_bits)
        self.wimm_bits = max(1, (p.max_wimm - 1).bit_length())
        self.stash = Table(lay.stash, p.qp_bits + self.wimm_bits)
        self.entry_bits = max(1, (p.rq_entries - 1).bit_length())
        self.entries = Table(data.StructLayout({"wr_id": 64}), p.qp_bits + self.entry_bits)
        self.region_bits = max(1, (p.regions - 1).bit_length())
        self.regions = Table(lay.region, self.region_bits)
        # answers
        self.queue = SyncFIFOBuffered(width=lay.answer.size, depth=p.sack_queue)
        self.queued = Signal(range(p.sack_queue + 1))
        self.head = data.View(lay.answer, self.queue.r_data)
        self.ack_pick = Picker(flags, p.qp_bits)
        self.follow_pick = Picker(flags, p.qp_bits)
        self.walk = FlushWalk(p.qp_bits)
        self.up = Signal(p.planes, init=(1 << p.planes) - 1)  # planes that are up, as of the last PORT step
        self.hold_ack = Signal(range(HOLD_CLOCKS + 1))
        self.hold_cmd = Signal(range(HOLD_CLOCKS + 1))
        self.draining = Signal()  # a MODIFY to RESET waits for the answers of its QP: no RECEIVE and no FLUSH meanwhile
        # outputs, one register each
        self.status_valid, self.status = Signal(), Signal(8)
        self.verdict_valid, self.verdict = Signal(), Signal(lay.verdict)
        self.tx_valid, self.tx = Signal(), Signal(lay.tx)
        self.completion_valid, self.completion = Signal(), Signal(lay.completion)
        self.peer_valid, self.peer_qp = Signal(), Signal(p.qp_bits)
        # QP_ERROR chain
        self.error_cause = Signal(8)
        self.error_notify = Signal()  # the requestor does not know yet
        if p.trace:
            t = TraceLayouts(p)
            self.seq = Signal(32)
            self.record = data.View(t.rsp, Signal(t.rsp.size, name="record"))
            self.record_valid = Signal()

    # --- pieces of states ---------------------------------------------------------------------------------------------------------------
    def submodules(self, m: Module) -> None:
        for name in ("contexts", "configs", "rows", "stash", "entries", "regions", "queue", "ack_pick", "follow_pick", "walk"):
            m.submodules[name] = getattr(self, name)

    def defaults(self, m: Module) -> None:
        """Always active; states override the synchronous defaults."""
        ports = self.ports
        m.d.comb += [
            self.epsn.eq(self.ctx.cack_psn + 1),
            self.live.eq((self.ctx.state == QpState.RTR) | (self.ctx.state == QpState.RTS)),
            self.contexts.wr_en.eq(self.store), self.contexts.wr_addr.eq(self.qp),
            self.contexts.wr_data.ctx.eq(self.ctx), self.contexts.wr_data.hid.eq(self.hid),
            self.walk.tick.eq(ports.tick), self.walk.wr_en.eq(self.store), self.walk.wr_qp.eq(self.qp),
            self.walk.wr_on.eq(self.ctx.flush_on & self.live), self.walk.wr_at.eq(self.ctx.flush_at),
            self.ack_pick.flags.eq(self.ack_set), self.follow_pick.flags.eq(self.follow_set),
            ports.path_qp.eq(self.qp),
        ]  # fmt: skip
        m.d.sync += [self.store.eq(0), ports.drop.valid.eq(0)]
        with m.If(self.store):
            m.d.sync += [
                set_flag(self.live_set, self.qp).eq(self.live),
                set_flag(self.busy_set, self.qp).eq((self.ctx.state != QpState.RESET) & (self.ctx.state != QpState.INIT)),
            ]
        for timer in (self.hold_ack, self.hold_cmd):
            with m.If(timer != 0):
                m.d.sync += timer.eq(timer - 1)
        for stream_port, valid, payload in (
            (ports.status, self.status_valid, self.status), (ports.verdict, self.verdict_valid, self.verdict), (ports.tx, self.tx_valid, self.tx),
            (ports.completion, self.completion_valid, self.completion), (ports.peer_error_out, self.peer_valid, self.peer_qp),
        ):  # fmt: skip
            m.d.comb += [stream_port.valid.eq(valid), Value.cast(stream_port.payload).eq(Value.cast(payload))]
            with m.If(valid & stream_port.ready):
                m.d.sync += valid.eq(0)
        if self.p.trace:
            m.d.sync += self.record_valid.eq(0)
            shown = data.View(self.record.shape(), ports.trace_data)
            m.d.comb += [ports.trace_valid.eq(self.record_valid), ports.trace_data.eq(Value.cast(self.record)), shown.ctx.eq(self.ctx)]

    def commit(self, m: Module, kind: spec.Kind, body: dict[str, Any]) -> None:
        """In the last clock of a step: store the context, emit the record with ``body``."""
        m.d.sync += self.store.eq(1)
        if self.p.trace:
            record = self.record
            view = record.body[kind.name.lower()]
            m.d.sync += [
                self.record_valid.eq(1), self.seq.eq(self.seq + 1), record.seq.eq(self.seq), record.kind.eq(kind), record.qp.eq(self.qp),
                record.tick.eq(self.now), Value.cast(record.body).eq(0),
            ]  # fmt: skip
            m.d.sync += [Value.cast(view[name]).eq(Value.cast(value)) for name, value in body.items()]

    def drop(self, m: Module, cause: spec.Drop | Value) -> None:
        """Count one frame."""
        m.d.sync += [self.ports.drop.valid.eq(1), self.ports.drop.cause.eq(cause)]

    def push(self, m: Module, **fields: ValueLike) -> None:
        """Queue a SACK or NACK of the loaded QP. The caller made sure that there is room. A SACK ends the counting of bytes and the flush timer."""
        entry = data.View(self.layouts.answer, self.queue.w_data)
        m.d.comb += [self.queue.w_en.eq(1), entry.qp.eq(self.qp)]
        m.d.comb += [entry[name].eq(value) for name, value in fields.items()]
        m.d.sync += [self.queued.eq(self.queued + 1), self.hid.queued.eq(self.hid.queued + 1)]
        if "reason" not in fields:
            m.d.sync += [self.ctx.trigger_cnt.eq(0), self.ctx.flush_on.eq(0)]

    def push_soft(self, m: Module) -> None:
        """Queue a SACK with the last accepted packet's fields that a later SACK may absorb."""
        c = self.ctx
        self.push(m, soft=1, plane=c.last_plane, psn=c.last_psn, ev=c.last_ev, tick=c.last_tick)

    def pop(self, m: Module) -> None:
        """Take the queue's oldest answer away; it belongs to the loaded QP."""
        m.d.comb += self.queue.r_en.eq(1)
        m.d.sync += [self.queued.eq(self.queued - 1), self.hid.queued.eq(self.hid.queued - 1)]

    def want_ack(self, m: Module, plane: Value) -> None:
        """The newest ACK (or the NAK) of the loaded QP has to leave on ``plane``; the latest cause decides."""
        m.d.sync += [set_flag(self.ack_set, self.qp).eq(1), self.hid.ack_plane.eq(plane)]

    def refuse(self, m: Module, syndrome: spec.Syndrome | Value, psn: Value, plane: Value) -> None:
        """Send a NAK; QP_ERROR must follow (state "QP_ERROR")."""
        m.d.sync += [self.ctx.nak.eq(syndrome), self.ctx.nak_psn.eq(psn), self.error_cause.eq(spec.WcStatus.LOCAL_QP_OPERATION), self.error_notify.eq(1)]
        self.want_ack(m, plane)

    def effective_plane(self, plane: Value) -> tuple[Value, Value]:
        """(a port is up, the plane an answer leaves on): ``plane`` if up, else the next one up, cyclic."""
        p = self.p
        doubled = Value.cast(self.up).replicate(2)
        any_up, steps = first_one((doubled >> plane)[: p.planes])
        return any_up, (Value.cast(plane) + steps)[: p.plane_bits] if p.planes > 1 else Const(0, 1)
