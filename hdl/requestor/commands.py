"""CONTROL, PORT and POST steps: the host's commands, each answered by one status."""

from __future__ import annotations

from amaranth.hdl import Const, Mux, Signal, Value
from amaranth.lib import data

from hdl import layouts
from hdl.requestor.bits import ev_of, plane_of
from hdl.requestor.core import Core
from hdl.requestor.evchange import EvOp
from model.spec import Command, Health, Kind, PostStatus, QpState, WcStatus


def view(layout: data.StructLayout, words: Value) -> data.View:  # type: ignore[type-arg]
    """The command data ``words`` as ``layout``."""
    return data.View(layout, words[:layout.size])


def add(c: Core) -> None:
    """States CMD*, POST*, PORT."""
    m, p, ctx = c.m, c.params, c.ctx
    cmd = c.ports.cmd.payload
    status = Signal(8)

    def done(result: PostStatus) -> None:
        m.d.sync += status.eq(result)
        m.next = "CMD_DONE"

    with m.State("CMD"):
        with m.Switch(cmd.op):
            with m.Case(Command.SET_GLOBAL):
                given = view(layouts.GLOBAL_CONFIG, cmd.data)
                done(PostStatus.BAD_STATE)
                with m.If(c.live == 0):
                    m.d.sync += [c.globals[name].eq(given[name]) for name, _ in c.layouts.global_config]
                    done(PostStatus.OK)
            with m.Case(Command.SET_QP):
                config = view(layouts.QP_CONFIG, cmd.data)
                done(PostStatus.BAD_STATE)
                with m.If(ctx.state == QpState.INIT):
                    m.d.sync += [c.config[name].eq(config[name]) for name, _ in c.layouts.config]
                    m.d.sync += c.config_write.eq(1)
                    done(PostStatus.OK)
            with m.Case(Command.SET_EV):
                done(PostStatus.BAD_STATE)
                with m.If(cmd.index >= p.total_evs):
                    done(PostStatus.BAD_QP)
                with m.Elif(ctx.state == QpState.INIT):
                    m.d.sync += c.ev_at.eq(cmd.index)
                    m.next = "CMD_SET_EV"
            with m.Case(Command.EV_STATE):
                state = view(layouts.EV_STATE_CONFIG, cmd.data)
                done(PostStatus.BAD_QP)
                with m.If(cmd.index < p.total_evs):
                    m.d.sync += c.ev_at.eq(cmd.index)
                    c.start_ev(Mux(state.denied, EvOp.DENY, EvOp.ALLOW), "CMD_EV_STATE")
            with m.Case(Command.MODIFY):
                m.next = "CMD_MODIFY"
            with m.Case(Command.POST):
                m.next = "POST"
            with m.Case(Command.PORT):
                m.d.sync += status.eq(PostStatus.BAD_QP)
                m.next = "CMD_PORT"
                with m.If(cmd.index < p.planes):
                    m.d.sync += status.eq(PostStatus.OK)
                    m.d.sync += c.admin.bit_select(cmd.index[:p.plane_bits], 1).eq(view(layouts.PORT_CONFIG, cmd.data).up)
            with m.Default():  # the dispatcher lets only known operations through
                m.d.sync += [c.status.eq(PostStatus.BAD_OPCODE), c.status_valid.eq(1)]
                m.next = "CMD_END"

    with m.State("CMD_DONE"):
        c.commit(Kind.CONTROL, op=cmd.op, index=cmd.index, status=status, data=cmd.data)
        m.d.sync += [c.status.eq(status), c.status_valid.eq(1)]
        m.next = "CMD_END"

    with m.State("CMD_END"):
        m.d.comb += c.ports.cmd.ready.eq(1)
        m.next = "IDLE"

    with m.State("CMD_SET_EV"):
        ev = view(layouts.EV_CONFIG, cmd.data)
        m.d.sync += [c.value_data.eq(ev.value), c.value_write.eq(1)]
        at = ev_of(p, c.ev_at)
        for n in range(p.planes):
            row = c.path.planes[n]
            with m.If(plane_of(p, c.ev_at) == n):
                m.d.sync += [
                    row.active.bit_select(at, 1).eq(ev.active), row.good.bit_select(at, 1).eq(ev.health == Health.GOOD),
                    row.skip.bit_select(at, 1).eq(ev.health == Health.SKIP), row.bad.bit_select(at, 1).eq(ev.health == Health.ASSUMED_BAD),
                ]  # fmt: skip
        done(PostStatus.OK)

    with m.State("CMD_EV_STATE"):
        with m.If(c.evchange.done):
            c.take_ev_change()
            c.wake()
            done(PostStatus.OK)

    _modify(c, done)
    _post(c)

    with m.State("CMD_PORT"):
        m.d.sync += [c.port_up.eq(c.ports.up & c.admin), c.send_work.eq(~Const(0, p.qps)), c.status.eq(status), c.status_valid.eq(1)]
        c.commit(Kind.PORT, up=c.ports.up & c.admin)
        m.next = "CMD_END"

    with m.State("PORT"):
        m.d.sync += [c.port_up.eq(c.ports.up & c.admin), c.send_work.eq(~Const(0, p.qps))]
        c.commit(Kind.PORT, up=c.ports.up & c.admin)
        m.next = "IDLE"


def _modify(c: Core, done: object) -> None:
    m, p, ctx = c.m, c.params, c.ctx
    cmd = c.ports.cmd.payload
    count = Signal(range(max(p.total_evs, p.rows) + 1))
    wanted = view(layouts.MODIFY_CONFIG, cmd.data).state

    with m.State("CMD_MODIFY"):
        done(PostStatus.BAD_STATE)  # type: ignore[operator]
        m.d.sync += count.eq(0)
        with m.Switch(wanted):
            with m.Case(QpState.RESET):
                with m.If(ctx.tx_pending == 0):
                    m.d.sync += c.reset_wait.eq(0)
                    m.next = "CMD_CLEAR"
                with m.Else():  # served again after the next departure
                    m.d.sync += [c.reset_wait.eq(1), c.reset_retry.eq(0)]
                    m.next = "IDLE"
            with m.Case(QpState.INIT):
                with m.If(ctx.state == QpState.RESET):
                    m.d.sync += ctx.state.eq(QpState.INIT)
                    done(PostStatus.OK)  # type: ignore[operator]
            with m.Case(QpState.RTR):
                with m.If(ctx.state == QpState.INIT):
                    m.d.sync += [ctx.state.eq(QpState.RTR), c.live.bit_select(c.qp, 1).eq(1)]
                    done(PostStatus.OK)  # type: ignore[operator]
            with m.Case(QpState.RTS):
                with m.If(ctx.state == QpState.RTR):
                    first, before = c.config.sq_psn, (c.config.sq_psn - 1)[:24]
                    m.d.sync += [
                        Value.cast(ctx).eq(0), Value.cast(c.aux).eq(0), ctx.state.eq(QpState.RTS),
                        ctx.next_psn.eq(first), ctx.post_psn.eq(first), ctx.unack_psn.eq(before),
                        ctx.right_edge.eq(before + c.config.req_mpr),
                        c.path.lfsr.eq(c.config.lfsr_seed), c.path.plane_ptr.eq(0),
                        *(field.eq(0) for n in range(p.planes) for field in (c.path.planes[n].ptr, c.path.planes[n].r)),
                    ]  # fmt: skip
                    done(PostStatus.OK)  # type: ignore[operator]
            with m.Case(QpState.ERROR):
                m.next = "CMD_ERROR"

    with m.State("CMD_ERROR"):
        # The CONTROL step changes nothing; the QP_ERROR step follows.
        c.commit(Kind.CONTROL, op=cmd.op, index=cmd.index, status=PostStatus.OK, data=cmd.data)
        m.d.sync += [c.status.eq(PostStatus.OK), c.status_valid.eq(1)]
        m.d.comb += c.ports.cmd.ready.eq(1)
        m.next = "IDLE"
        with m.If(ctx.state != QpState.ERROR):
            c.follow_error(WcStatus.LOCAL_QP_OPERATION, tell=False)

    with m.State("CMD_CLEAR"):
        # One EV and one bitmap row a clock, written by the saves of the clock after.
        m.d.sync += [
            count.eq(count + 1), Value.cast(c.ev).eq(0), Value.cast(c.row).eq(0), c.ev_at.eq(count), c.row_at.eq(count),
            c.value_data.eq(0), c.value_write.eq(1),
        ]  # fmt: skip
        m.d.comb += [c.save_ev.eq(1), c.save_row.eq(1)]
        with m.If(count == max(p.total_evs, p.rows) - 1):
            m.next = "CMD_CLEARED"

    with m.State("CMD_CLEARED"):
        m.d.sync += [
            Value.cast(ctx).eq(0), Value.cast(c.aux).eq(0), Value.cast(c.path).eq(0),
            *(bits.bit_select(c.qp, 1).eq(0) for bits in (c.live, c.send_work, c.complete_work, c.error_out)),
        ]  # fmt: skip
        done(PostStatus.OK)  # type: ignore[operator]


def _post(c: Core) -> None:
    m, p, ctx = c.m, c.params, c.ctx
    cmd = c.ports.cmd.payload
    wr = view(layouts.WORK_REQUEST, cmd.data)
    status = Signal(8)
    beyond = Signal(24)  # packets after the first one

    with m.State("POST"):
        takes = (ctx.state == QpState.RTS) | (ctx.state == QpState.ERROR)
        full = (ctx.msg_tail - ctx.msg_head)[:16] >= p.msg_slots
        m.d.sync += [
            status.eq(Mux(wr.length == 0, PostStatus.BAD_LENGTH, Mux(~takes, PostStatus.BAD_STATE, Mux(full, PostStatus.FULL, PostStatus.OK)))),
            beyond.eq((wr.length - 1)[8:32] >> c.config.mtu), c.msg_slot.eq(ctx.msg_tail),
        ]  # fmt: skip
        m.next = "POST_TAKE"

    with m.State("POST_TAKE"):
        m.d.sync += [c.status.eq(status), c.status_valid.eq(1)]
        with m.If(status == PostStatus.OK):
            last = (ctx.post_psn + beyond)[:24]
            m.d.sync += [
                *(c.msg_data[name].eq(wr[name]) for name in ("imm_valid", "laddr", "raddr", "length", "rkey", "imm", "wr_id")),
                c.msg_data.first_psn.eq(ctx.post_psn), c.msg_data.last_psn.eq(last),
                c.msg_data.msn.eq(ctx.next_msn), c.msg_data.rqmsn.eq(ctx.next_rqmsn), c.msg_write.eq(1),
                ctx.next_msn.eq(ctx.next_msn + 1), ctx.next_rqmsn.eq(ctx.next_rqmsn + wr.imm_valid),
                ctx.post_psn.eq(last + 1), ctx.msg_tail.eq(ctx.msg_tail + 1),
            ]  # fmt: skip
            with m.If(ctx.state == QpState.ERROR):
                m.d.sync += c.complete_work.bit_select(c.qp, 1).eq(1)
            with m.Else():
                c.wake()
                with m.If(c.idle):
                    m.d.sync += [ctx.timer_on.eq(1), ctx.timer_deadline.eq(c.now + c.t1), ctx.expiry.eq(0), ctx.retry.eq(0)]
        c.commit(Kind.POST, status=status, slot=Mux(status == PostStatus.OK, c.msg_slot, 0), wr=cmd.data)
        m.next = "CMD_END"



