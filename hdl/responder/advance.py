"""What follows a RECEIVE: ADVANCE of cack_psn over recorded PSNs, row by row, and RECV_COMPLETE of messages in PSN order.

ADVANCE always runs at once. RECV_COMPLETE waits only for the completion register; then the QP's flag in ``follow_set`` brings the sequencer back
here, and neither RECEIVE nor EMIT of that QP come before. The ring of 64-PSN rows holds (cack_psn, cack_psn + W]: PSN and PSN + W share a bit, which is
why an end at PSN is used up here before PSN + W can be accepted.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hdl.responder.bits import bit_of, first_one, from_bit, sdiff, set_flag
from hdl.responder.shared import Shared
from model.spec import Kind, QpState, Syndrome, WcStatus


def advance_states(m: Module, s: Shared) -> None:
    p, ctx, row = s.p, s.ctx, s.rows.rd_data
    first = s.epsn[:6]
    stop = Signal(7)  # bit of the first PSN of the row, from ePSN on, that has not arrived; 64: none

    with m.State("ADVANCE_READ"):
        s.rows.read(m, Cat(s.epsn[6 : 6 + p.row_bits], s.qp))
        m.next = "ADVANCE_FIND"

    with m.State("ADVANCE_FIND"):
        gap, index = first_one(~row.rcvd & from_bit(first, 64))
        m.d.sync += stop.eq(Mux(gap, index, 64))
        m.next = "ADVANCE"

    with m.State("ADVANCE"):
        run = (stop - first)[:7]
        left = (ctx.ooo_count - run)[:16]
        cack = (ctx.cack_psn + run)[:24]
        m.next = "COMPLETE_SCAN"
        with m.If(run != 0):
            kept = Cat(row.rcvd & ~(from_bit(first, 64) & ~from_bit(stop, 64)), row.end, row.imm)
            s.rows.write(m, Cat(s.epsn[6 : 6 + p.row_bits], s.qp), kept)
            m.d.sync += [ctx.cack_psn.eq(cack), ctx.ooo_count.eq(left)]
            with m.If((left == 0) & ctx.prev_ar):
                s.push_soft(m)
                m.d.sync += ctx.prev_ar.eq(0)
            with m.Elif((left != 0) & s.hid.a_head):
                m.d.sync += ctx.prev_ar.eq(1)
            s.commit(m, Kind.ADVANCE, {"cack_psn": cack})
            with m.If(stop == 64):
                m.next = "ADVANCE_READ"


def complete_states(m: Module, s: Shared) -> None:
    """From COMPLETE_SCAN on: search the rows between ``hid.scan`` and cack_psn for message ends. FLUSH_ENTRIES: a QP in ERROR."""
    p, ctx, row, scan = s.p, s.ctx, s.rows.rd_data, s.hid.scan
    found, psn = Signal(), Signal(24)
    is_imm, fits = Signal(), Signal()
    stash = s.stash.rd_data
    entry_address = Cat(ctx.rq_head[: s.entry_bits], s.qp)
    empty = ctx.rq_head == ctx.rq_tail

    def wait_for_register() -> None:
        m.d.sync += [set_flag(s.follow_set, s.qp).eq(1), s.store.eq(1)]
        m.next = "IDLE"

    def complete(status: WcStatus, length: Value, imm: Value) -> None:
        m.d.sync += [
            s.completion_valid.eq(1), s.completion.qp.eq(s.qp), s.completion.recv.eq(1), s.completion.status.eq(status),
            s.completion.wr_id.eq(s.entries.rd_data.wr_id), s.completion.length.eq(length), s.completion.imm.eq(imm),
            ctx.rq_head.eq(ctx.rq_head + 1),
        ]  # fmt: skip

    with m.State("FOLLOW"):
        # a QP comes back whose completion had to wait, or whose receive entries are to be flushed
        m.next = "COMPLETE_SCAN"
        with m.If(ctx.state == QpState.ERROR):
            s.entries.read(m, entry_address)
            m.next = "FLUSH_ENTRY"

    with m.State("FLUSH_ENTRY"):
        m.next = "IDLE"
        with m.If(empty):
            m.d.sync += set_flag(s.follow_set, s.qp).eq(0)
        with m.Elif(~s.completion_valid):
            complete(WcStatus.FLUSHED, Const(0, 32), Const(0, 32))
            s.commit(m, Kind.RECV_COMPLETE, {"status": WcStatus.FLUSHED, "wr_id": s.entries.rd_data.wr_id})

    with m.State("COMPLETE_SCAN"):
        s.rows.read(m, Cat(scan[6 : 6 + p.row_bits], s.qp))
        m.next = "COMPLETE_FIND"
        with m.If(scan == s.epsn):
            m.d.sync += [set_flag(s.follow_set, s.qp).eq(0), s.store.eq(1)]
            m.next = "IDLE"

    with m.State("COMPLETE_FIND"):
        any_end, index = first_one(row.end & from_bit(scan[:6], 64))
        m.d.sync += [found.eq(any_end), psn.eq(Cat(index, scan[6:])), is_imm.eq(bit_of(row.imm, index))]
        s.stash.read(m, Cat(ctx.next_rqmsn[: s.wimm_bits], s.qp))
        s.entries.read(m, entry_address)
        m.next = "COMPLETE_CHECK"

    with m.State("COMPLETE_CHECK"):
        m.d.sync += fits.eq(stash.valid & (stash.last_psn == psn))
        m.next = "RECV_COMPLETE"
        with m.If(~(found & (sdiff(psn, ctx.cack_psn) <= 0))):
            same_row = sdiff(Cat(Const(0, 6), scan[6:]), Cat(Const(0, 6), s.epsn[6:])) == 0
            m.d.sync += scan.eq(Mux(same_row, s.epsn, Cat(Const(0, 6), (scan[6:] + 1)[:18])))
            m.next = "COMPLETE_SCAN"

    with m.State("RECV_COMPLETE"):
        m.next = "COMPLETE_SCAN"
        body = {"psn": psn, "imm_valid": is_imm}

        def refuse(syndrome: Syndrome, status: WcStatus) -> None:
            s.refuse(m, syndrome, psn, ctx.last_plane)
            s.commit(m, Kind.RECV_COMPLETE, body | {"status": status})
            m.next = "QP_ERROR"

        with m.If(is_imm & ~fits):
            refuse(Syndrome.NAK_INVALID_REQUEST, WcStatus.REMOTE_INVALID_REQUEST)
        with m.Elif(is_imm & empty):
            refuse(Syndrome.NAK_REMOTE_OPERATION, WcStatus.REMOTE_OPERATION)
        with m.Elif(is_imm & s.completion_valid):
            wait_for_register()
        with m.Else():
            bit = ~(from_bit(psn[:6], 64) & ~(from_bit(psn[:6], 64) << 1)[:64])
            s.rows.write(m, Cat(psn[6 : 6 + p.row_bits], s.qp), Cat(row.rcvd, row.end & bit, row.imm & bit))
            m.d.sync += [scan.eq(psn + 1), ctx.done_psn.eq(psn), ctx.done_msn.eq(ctx.done_msn + 1), ctx.ack_valid.eq(1)]
            s.want_ack(m, ctx.last_plane)
            with m.If(is_imm):
                complete(WcStatus.SUCCESS, stash.length, stash.imm)
                m.d.sync += ctx.next_rqmsn.eq(ctx.next_rqmsn + 1)
                s.stash.write(m, Cat(ctx.next_rqmsn[: s.wimm_bits], s.qp), 0)
            given = {"wr_id": s.entries.rd_data.wr_id, "length": stash.length, "imm": stash.imm}
            s.commit(m, Kind.RECV_COMPLETE, body | {"status": WcStatus.SUCCESS} | {k: Mux(is_imm, v, 0) for k, v in given.items()})


def flush_states(m: Module, s: Shared) -> None:
    """FLUSH: the counter has been non-zero for sack_flush_time."""
    with m.State("FLUSH"):
        m.d.comb += s.walk.taken.eq(1)
        m.next = "IDLE"
        with m.If(s.live & s.ctx.flush_on & ~(s.now - s.ctx.flush_at)[31]):
            s.push_soft(m)
            s.commit(m, Kind.FLUSH, {})
