"""The responder: tracker of arrived PSNs, order of completions, SACKs, NACKs and transport ACKs (docs/architecture.md, "Responder steps")."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.params import Params
from hdl.responder.advance import advance_states, complete_states, flush_states
from hdl.responder.bits import bit_of, first_one, set_flag
from hdl.responder.commands import command_states, error_states
from hdl.responder.contexts import RspLayouts
from hdl.responder.emit import emit_states
from hdl.responder.receive import receive_states
from hdl.responder.shared import Job, Shared
from hdl.trace import TraceLayouts
from model.spec import Command, WcStatus

ANSWERS_PER_RECEIVE = 2  # its own, and the soft SACK of the ADVANCE that closes the last gap


class Responder(wiring.Component):
    """Protocol state of all QPs as responder, one step at a time.

    Every frame of ``rx`` (data or probe, in order) is one RECEIVE; a data frame causes exactly one ``verdict``. A RECEIVE is taken only while the
    answer queue has room for all it can cause, the verdict register is free and nothing of its QP waits to complete; an answer that waits for
    ``room`` of its plane stays at the head of the queue and blocks neither RECEIVE nor other steps until the queue is full.

    Clocks per step, streams ready: RECEIVE 6, each ADVANCE 3, RECV_COMPLETE 4 and 1 more at the end, EMIT 9.

    ========================  =====================================================================================================
    cmd, status               SET_GLOBAL, SET_QP, SET_REGION, MODIFY, POST_RECV, PORT with a QP index in range; one PostStatus each
    up                        planes whose port is up (link and administrative state), any clock; a change is a PORT step
    room                      planes that can take an answer frame
    wr_error, peer_error_in   a payload write failed; the requestor went to ERROR. Both: QP_ERROR of that QP
    peer_error_out            this side went to ERROR and the requestor has to follow
    path_qp -> path_row       the requestor's path row of that QP, one clock later
    path_ev_index -> path_ev  EV value of that EV of path_qp, one clock later
    drop                      pulse: one more frame of this spec.Drop
    trace_valid, trace_data   with params.trace: a commit record (TraceLayouts.rsp)
    ========================  =====================================================================================================
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        lay = RspLayouts(params)
        members = {
            "cmd": In(stream.Signature(lay.cmd)), "status": Out(stream.Signature(lay.cmd_status)),
            "rx": In(stream.Signature(lay.rx)), "verdict": Out(stream.Signature(lay.verdict)),
            "tx": Out(stream.Signature(lay.tx)), "completion": Out(stream.Signature(lay.completion)),
            "tick": In(32), "up": In(params.planes), "room": In(params.planes),
            "wr_error": In(stream.Signature(lay.qp_event)),
            "peer_error_in": In(stream.Signature(lay.qp_event)), "peer_error_out": Out(stream.Signature(lay.qp_event)),
            "path_qp": Out(params.qp_bits), "path_row": In(lay.reverse_rows),
            "path_ev_index": Out(params.evi_bits), "path_ev": In(32),
            "drop": Out(lay.drop),
        }  # fmt: skip
        if params.sack_queue < 2 * ANSWERS_PER_RECEIVE:
            raise ValueError(f"preset {params.name!r}: sack_queue = {params.sack_queue}; one RECEIVE may cause two answers, so at least 4")
        if params.trace:
            members |= {"trace_valid": Out(1), "trace_data": Out(TraceLayouts(params).rsp.size)}
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        s = Shared(self.params, self)
        s.submodules(m)
        s.defaults(m)
        self._peer_errors(m, s)
        with m.FSM(name="step"):
            self._idle(m, s)
            self._load(m, s)
            command_states(m, s)
            error_states(m, s)
            receive_states(m, s)
            advance_states(m, s)
            complete_states(m, s)
            flush_states(m, s)
            emit_states(m, s)
        return m

    def _peer_errors(self, m: Module, s: Shared) -> None:
        """Requests to the requestor leave from their own register, so that the two owners can never wait for each other."""
        _, qp = first_one(s.peer_set)
        with m.If(s.peer_set.any() & ~s.peer_valid):
            m.d.sync += [s.peer_valid.eq(1), s.peer_qp.eq(qp), set_flag(s.peer_set, qp).eq(0)]

    def _idle(self, m: Module, s: Shared) -> None:
        """Chooses the next step. Order: errors, commands, ports, completions that waited, flush, answers, RECEIVE."""
        rx, cmd = self.rx, self.cmd
        named = (Command.SET_QP, Command.MODIFY, Command.POST_RECV)
        ack_qp, follow_qp, head_qp = s.ack_pick.index, s.follow_pick.index, s.head.qp
        any_up, exit_plane = s.effective_plane(s.head.plane)
        stale = ~bit_of(s.live_set, head_qp)
        head_leaves = stale | ~any_up | bit_of(self.room, exit_plane)
        space = s.queued <= self.params.sack_queue - ANSWERS_PER_RECEIVE

        def start(job: Job, qp: Value) -> None:
            m.d.sync += [s.job.eq(job), s.qp.eq(qp)]
            m.next = "LOAD"

        def error(cause: WcStatus, notify: int) -> None:
            m.d.sync += [s.error_cause.eq(cause), s.error_notify.eq(notify)]

        with m.State("IDLE"):
            with m.If(self.peer_error_in.valid):
                m.d.comb += self.peer_error_in.ready.eq(1)
                error(WcStatus.LOCAL_QP_OPERATION, notify=0)
                start(Job.ERROR, self.peer_error_in.payload.qp)
            with m.Elif(self.wr_error.valid):
                m.d.comb += self.wr_error.ready.eq(1)
                error(WcStatus.LOCAL_MEMORY, notify=1)
                start(Job.ERROR, self.wr_error.payload.qp)
            with m.Elif(cmd.valid & ~s.status_valid & (s.hold_cmd == 0)):
                start(Job.COMMAND, Mux(Value.cast(cmd.payload.op).matches(*named), cmd.payload.qp, 0))
            with m.Elif(s.up != self.up):
                start(Job.PORT, Value.cast(0))
            with m.Elif(s.follow_pick.valid & bit_of(s.follow_set, follow_qp) & ~s.completion_valid):
                m.d.comb += s.follow_pick.taken.eq(1)
                start(Job.FOLLOW, follow_qp)
            with m.Elif(s.walk.due_valid & space & ~s.draining & ~bit_of(s.follow_set, s.walk.due_qp)):
                start(Job.FLUSH, s.walk.due_qp)
            with m.Elif(s.ack_pick.valid & bit_of(s.ack_set, ack_qp) & ~bit_of(s.follow_set, ack_qp) & ~s.tx_valid & (s.hold_ack == 0)):
                m.d.comb += s.ack_pick.taken.eq(1)
                start(Job.ACK, ack_qp)
            with m.Elif(s.queue.r_rdy & ~bit_of(s.follow_set, head_qp) & ~s.tx_valid & head_leaves):
                start(Job.ANSWER, head_qp)
            with m.Elif(rx.valid & ~s.verdict_valid & space & ~s.draining & ~bit_of(s.follow_set, rx.payload.qp)):
                start(Job.RX, rx.payload.qp)

    def _load(self, m: Module, s: Shared) -> None:
        """Two clocks: ask, then take the context. The packet's row and its region are asked for at the same time and stay on their ports."""
        p, rx = self.params, self.rx.payload
        after = {Job.ERROR: "ERROR_REQUEST", Job.COMMAND: "COMMAND", Job.PORT: "PORT", Job.FOLLOW: "FOLLOW", Job.FLUSH: "FLUSH",
                 Job.ACK: "EMIT", Job.ANSWER: "EMIT", Job.RX: "RECEIVE_MEASURE"}  # fmt: skip
        with m.State("LOAD"):
            s.contexts.read(m, s.qp)
            s.configs.read(m, s.qp)
            s.rows.read(m, Cat(rx.psn[6 : 6 + p.row_bits], s.qp))
            s.regions.read(m, rx.ext["data"].rkey[: s.region_bits])
            m.next = "TAKE"
        with m.State("TAKE"):
            m.d.sync += [s.ctx.eq(s.contexts.rd_data.ctx), s.hid.eq(s.contexts.rd_data.hid), s.cfg.eq(s.configs.rd_data), s.now.eq(self.tick)]
            with m.Switch(s.job):
                for job, state in after.items():
                    with m.Case(job):
                        m.next = state
