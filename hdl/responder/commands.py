"""Commands of the host (CONTROL, PORT and POST_RECV steps), QP_ERROR, and what a RESET clears."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hdl.layouts import GLOBAL_CONFIG, MODIFY_CONFIG, QP_CONFIG, RECV_REQUEST, REGION_CONFIG
from hdl.responder.bits import bit_of, set_flag
from hdl.responder.contexts import CONFIG, GLOBAL_BITS
from hdl.responder.shared import HOLD_CLOCKS, Shared
from model.spec import Command, Kind, PostStatus, QpState, Syndrome, WcStatus


def command_states(m: Module, s: Shared) -> None:
    """COMMAND: decides and commits, but for a MODIFY to RESET, which waits until nothing of the QP is under way and clears its rows first."""
    p, ctx, cmd = s.p, s.ctx, s.ports.cmd
    word = cmd.payload
    qp_config = data.View(QP_CONFIG, word.data[: QP_CONFIG.size]) if QP_CONFIG.size <= len(word.data) else None
    glob_config = data.View(GLOBAL_CONFIG, word.data[: GLOBAL_CONFIG.size])
    region_config = data.View(REGION_CONFIG, word.data[: REGION_CONFIG.size])
    target = data.View(MODIFY_CONFIG, word.data[: MODIFY_CONFIG.size]).state
    wr_id = data.View(RECV_REQUEST, word.data[: RECV_REQUEST.size]).wr_id
    assert qp_config is not None, "QP_CONFIG fits a command"
    state = ctx.state
    status = Signal(8)
    clear_count = Signal(max(p.row_bits, s.wimm_bits))

    def answer(value: Value | PostStatus) -> None:
        m.d.comb += cmd.ready.eq(1)
        m.d.sync += [s.status_valid.eq(1), s.status.eq(value), s.draining.eq(0)]

    def control(value: Value | PostStatus) -> None:
        s.commit(m, Kind.CONTROL, {"op": word.op, "index": word.index, "status": value, "data": word.data})
        answer(value)

    with m.State("COMMAND"):
        m.next = "IDLE"
        with m.Switch(word.op):
            with m.Case(Command.SET_GLOBAL):
                m.d.comb += status.eq(Mux(s.busy_set.any(), PostStatus.BAD_STATE, PostStatus.OK))
                with m.If(~s.busy_set.any()):
                    m.d.sync += [s.glob[name].eq(glob_config[name]) for name, _ in GLOBAL_BITS]
                control(status)
            with m.Case(Command.SET_QP):
                with m.If(state != QpState.INIT):
                    m.d.comb += status.eq(PostStatus.BAD_STATE)
                with m.Else():
                    subset = Signal(CONFIG)
                    m.d.comb += [subset[name].eq(qp_config[name]) for name, _ in CONFIG]
                    s.configs.write(m, s.qp, subset)
                control(status)
            with m.Case(Command.SET_REGION):
                s.regions.write(m, word.index[: s.region_bits], region_config)
                control(PostStatus.OK)
            with m.Case(Command.POST_RECV):
                full = (ctx.rq_tail - ctx.rq_head)[:16] == p.rq_entries
                with m.If(state == QpState.RESET):
                    m.d.comb += status.eq(PostStatus.BAD_STATE)
                with m.Elif(full):
                    m.d.comb += status.eq(PostStatus.FULL)
                with m.Else():
                    s.entries.write(m, Cat(ctx.rq_tail[: s.entry_bits], s.qp), wr_id)
                    m.d.sync += ctx.rq_tail.eq(ctx.rq_tail + 1)
                    with m.If(state == QpState.ERROR):
                        m.d.sync += set_flag(s.follow_set, s.qp).eq(1)
                s.commit(m, Kind.POST_RECV, {"status": status, "wr_id": wr_id})
                answer(status)
            with m.Case(Command.PORT):
                m.d.sync += s.up.eq(s.ports.up)
                s.commit(m, Kind.PORT, {"up": s.ports.up})
                answer(PostStatus.OK)
            with m.Case(Command.MODIFY):
                forward = (
                    ((state == QpState.RESET) & (target == QpState.INIT))
                    | ((state == QpState.INIT) & (target == QpState.RTR))
                    | ((state == QpState.RTR) & (target == QpState.RTS))
                )
                with m.If(target == QpState.RESET):
                    under_way = (
                        (s.hid.queued != 0) | bit_of(s.ack_set | s.follow_set | s.peer_set, s.qp)
                        | (s.tx_valid & (s.tx.qp == s.qp)) | (s.peer_valid & (s.peer_qp == s.qp))
                    )  # fmt: skip
                    with m.If(under_way):
                        m.d.sync += [s.draining.eq(1), s.hold_cmd.eq(HOLD_CLOCKS)]
                    with m.Else():
                        m.d.sync += clear_count.eq(0)
                        m.next = "CLEAR"
                with m.Elif(target == QpState.ERROR):
                    m.d.sync += [s.error_cause.eq(WcStatus.LOCAL_QP_OPERATION), s.error_notify.eq(0)]
                    control(PostStatus.OK)
                    m.next = "QP_ERROR"
                with m.Elif(forward):
                    m.d.sync += state.eq(target)
                    with m.If(target == QpState.RTR):
                        before = (s.cfg.rq_psn - 1)[:24]
                        head, tail = ctx.rq_head, ctx.rq_tail
                        m.d.sync += [
                            Value.cast(ctx).eq(0), state.eq(target), head.eq(ctx.rq_head), tail.eq(ctx.rq_tail),
                            ctx.cack_psn.eq(before), ctx.max_rcv_psn.eq(before), ctx.done_psn.eq(before), ctx.sweep.eq(s.cfg.rq_psn),
                            ctx.right_edge.eq(before + s.cfg.rsp_mpr), s.hid.scan.eq(s.cfg.rq_psn),
                        ]  # fmt: skip
                    control(PostStatus.OK)
                with m.Else():
                    control(PostStatus.BAD_STATE)
            with m.Default():  # the engine sends nothing else here
                answer(PostStatus.BAD_OPCODE)

    with m.State("CLEAR"):
        # One row and one stash entry a clock; the shorter ring is cleared more than once.
        s.rows.write(m, Cat(clear_count[: p.row_bits], s.qp), 0)
        s.stash.write(m, Cat(clear_count[: s.wimm_bits], s.qp), 0)
        m.d.sync += clear_count.eq(clear_count + 1)
        with m.If(clear_count.all()):
            m.d.sync += [Value.cast(ctx).eq(0), Value.cast(s.hid).eq(0)]
            control(PostStatus.OK)
            m.next = "IDLE"

    with m.State("PORT"):
        m.d.sync += s.up.eq(s.ports.up)
        s.commit(m, Kind.PORT, {"up": s.ports.up})
        m.next = "IDLE"


def error_states(m: Module, s: Shared) -> None:
    """QP_ERROR: no step when the QP is in ERROR already, or when an error of the other side meets a QP that is not connected any more."""
    ctx = s.ctx
    memory_error = s.error_cause == WcStatus.LOCAL_MEMORY
    with m.State("ERROR_REQUEST"):
        m.next = "IDLE"
        with m.If(s.live):
            m.next = "QP_ERROR"
            with m.If(memory_error):
                # a PSN that the sender must still hold: the gap, or what the failed write kept from being acknowledged
                psn = Mux(ctx.ooo_count != 0, s.epsn, ctx.cack_psn)
                m.d.sync += [ctx.nak.eq(Syndrome.NAK_REMOTE_OPERATION), ctx.nak_psn.eq(psn)]
                s.want_ack(m, ctx.last_plane)
    with m.State("QP_ERROR"):
        m.next = "IDLE"
        with m.If(ctx.state != QpState.ERROR):
            m.d.sync += ctx.state.eq(QpState.ERROR)
            with m.If(ctx.nak == 0):
                m.d.sync += set_flag(s.ack_set, s.qp).eq(0)
            m.d.sync += set_flag(s.follow_set, s.qp).eq(ctx.rq_head != ctx.rq_tail)
            with m.If(s.error_notify):
                m.d.sync += set_flag(s.peer_set, s.qp).eq(1)
            s.commit(m, Kind.QP_ERROR, {"cause": s.error_cause})
