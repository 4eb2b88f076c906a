"""ACK, COMPLETE and QP_ERROR steps: how messages end."""

from __future__ import annotations

from amaranth.hdl import Mux, Signal, Value

from hdl.requestor.bits import serial
from hdl.requestor.core import Core
from hdl.requestor.feedback import NOT_DROPPED
from model.spec import Drop, Kind, QpState, Syndrome, WcStatus


def add(c: Core) -> None:
    """States ACK*, COMPLETE*, QP_ERROR."""
    _ack(c)
    _complete(c)
    _error(c)


def _ack(c: Core) -> None:
    m, ctx = c.m, c.ctx
    rx = c.ports.rx.payload
    ack = rx.ext.ack
    message = Signal(16)  # the one looked at
    passed = Signal(16)  # WriteIMMs among those looked at before it and itself
    positive = Signal()
    status = Signal(8)

    with m.State("ACK"):
        m.d.sync += [message.eq(ctx.msg_done), passed.eq(0), c.sweep_from.eq(c.head), c.sweep_sack.eq(0), positive.eq(0)]
        m.next = "ACK_LOOK"
        with m.Switch(ack.syndrome):
            with m.Case(Syndrome.ACK):
                m.d.sync += positive.eq(1)
            with m.Case(Syndrome.NAK_INVALID_REQUEST):
                m.d.sync += status.eq(WcStatus.REMOTE_INVALID_REQUEST)
            with m.Case(Syndrome.NAK_REMOTE_ACCESS):
                m.d.sync += status.eq(WcStatus.REMOTE_ACCESS)
            with m.Case(Syndrome.NAK_REMOTE_OPERATION):
                m.d.sync += status.eq(WcStatus.REMOTE_OPERATION)
            with m.Default():
                m.next = "ACK_IGNORE"

    with m.State("ACK_LOOK"):
        c.msg_ram.read(m, c.at_msg(message))
        with m.If(message == Mux(positive, ctx.msg_send, ctx.msg_tail)):
            m.next = "ACK_IGNORE"
        with m.Else():
            m.next = "ACK_GOT"

    with m.State("ACK_GOT"):
        inside = (rx.psn - c.message.first_psn)[:24] <= (c.message.last_psn - c.message.first_psn)[:24]
        m.d.sync += [passed.eq(passed + c.message.imm_valid), message.eq(message + 1)]
        m.next = "ACK_LOOK"
        with m.If(positive):
            with m.If(rx.psn == c.message.last_psn):
                m.next = "ACK_TAKE"
        with m.Elif(inside):
            with m.If(c.after(ctx.next_psn, rx.psn)):
                m.d.comb += c.ports.rx.ready.eq(1)
                c.commit(Kind.ACK, rx=rx, drop=NOT_DROPPED)
                c.follow_error(status, message)
            with m.Else():
                m.next = "ACK_IGNORE"

    with m.State("ACK_IGNORE"):
        c.drop(Drop.ACK_IGNORED)
        c.commit(Kind.ACK, rx=rx, drop=Drop.ACK_IGNORED)
        m.next = "RX_END"

    with m.State("ACK_TAKE"):
        m.d.sync += [ctx.msg_done.eq(message), ctx.wimm_open.eq(ctx.wimm_open - passed), ctx.probe_ref.eq(c.now)]
        with m.If(serial(rx.psn - ctx.unack_psn) > 0):
            m.d.sync += ctx.unack_psn.eq(rx.psn)
        c.progress(message != ctx.msg_tail)
        m.d.sync += c.complete_work.bit_select(c.qp, 1).eq(1)
        m.next = "ACK_SETTLE"

    with m.State("ACK_SETTLE"):
        c.settle()
        c.commit(Kind.ACK, rx=rx, drop=NOT_DROPPED)
        m.next = "SWEEP"


def _complete(c: Core) -> None:
    m, ctx = c.m, c.ctx
    in_error = ctx.state == QpState.ERROR
    with m.State("COMPLETE"):
        c.msg_ram.read(m, c.at_msg(ctx.msg_head))
        with m.If(ctx.msg_head == Mux(in_error, ctx.msg_tail, ctx.msg_done)):
            m.d.sync += c.complete_work.bit_select(c.qp, 1).eq(0)
            m.next = "IDLE"
        with m.Else():
            m.next = "COMPLETE_GOT"

    with m.State("COMPLETE_GOT"):
        done = ctx.msg_head != ctx.msg_done
        status = Mux(done, WcStatus.SUCCESS, Mux(ctx.msg_head == ctx.err_msg, ctx.err_status, WcStatus.FLUSHED))
        m.d.sync += [
            Value.cast(c.completion).eq(0), c.completion.qp.eq(c.qp), c.completion.status.eq(status),
            c.completion.wr_id.eq(c.message.wr_id), c.completion.length.eq(c.message.length), c.completion_valid.eq(1),
            ctx.msg_head.eq(ctx.msg_head + 1),
        ]  # fmt: skip
        with m.If(~done):
            m.d.sync += ctx.msg_done.eq(ctx.msg_done + 1)
        c.commit(Kind.COMPLETE, msg=ctx.msg_head, status=status, wr_id=c.message.wr_id, length=c.message.length)
        m.next = "IDLE"


def _error(c: Core) -> None:
    m, ctx = c.m, c.ctx
    with m.State("QP_ERROR"):
        m.d.sync += [
            ctx.state.eq(QpState.ERROR), ctx.err_msg.eq(c.error_msg),
            # With nothing unfinished there is no message to blame: later posts are flushed.
            ctx.err_status.eq(Mux(ctx.msg_done == ctx.msg_tail, WcStatus.FLUSHED, c.error_cause)),
            ctx.timer_on.eq(0), ctx.probe_on.eq(0), ctx.want_probe.eq(0), ctx.bad_probe_on.eq(0), ctx.hold.eq(0),
            c.complete_work.bit_select(c.qp, 1).eq(1), c.send_work.bit_select(c.qp, 1).eq(0), c.live.bit_select(c.qp, 1).eq(1),
        ]  # fmt: skip
        with m.If(c.error_tell):
            m.d.sync += c.error_out.bit_select(c.qp, 1).eq(1)
        c.commit(Kind.QP_ERROR, cause=c.error_cause, msg=c.error_msg)
        m.next = "IDLE"
