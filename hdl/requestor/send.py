"""SEND steps: which PSN, over which EV, with which headers."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal, Value

from hdl.requestor.bits import any_first, plane_of, thermometer
from hdl.requestor.core import Core, Fetch
from hdl.requestor.fetch import size_of, tail_length
from model.spec import Kind, Opcode, QpState


def add(c: Core) -> None:
    """States SEND, LOST_* (search of the oldest lost PSN), SEND_*."""
    _choose(c)
    _select(c)


def _choose(c: Core) -> None:
    m, ctx, aux = c.m, c.ctx, c.aux
    scan_row = Signal(18)
    scan_bit = Signal(6)
    hit = Signal()

    with m.State("SEND"):
        m.d.sync += [c.send_cwnd.eq(c.cwnd_ok), scan_row.eq(aux.lost_ptr[6:]), scan_bit.eq(aux.lost_ptr[:6])]
        with m.If((ctx.state != QpState.RTS) | c.blocked):
            m.next = "SEND_FAIL"
        with m.Elif(aux.lost_cnt != 0):
            m.next = "LOST_ROW"
        with m.Else():
            m.next = "SEND_NEW"

    with m.State("LOST_ROW"):
        c.row_ram.read(m, c.at_row(scan_row))
        m.next = "LOST_LOOK"

    with m.State("LOST_LOOK"):
        found, index = any_first(c.logic, c.row_ram.data.lost & ~thermometer(c.logic, scan_bit, 64))
        m.d.sync += [hit.eq(found), c.psn.eq(Cat(index, scan_row))]
        m.next = "LOST_GOT"

    with m.State("LOST_GOT"):
        free = ctx.head_free & (c.psn == c.head)
        with m.If(~hit):
            m.d.sync += [scan_row.eq(scan_row + 1), scan_bit.eq(0)]
            m.next = "LOST_ROW"
        with m.Elif((~ctx.hold | c.reached(ctx.hold_until) | free) & (c.send_cwnd | free)):
            c.start_fetch(Fetch.SEND, c.psn)
            m.d.sync += c.send_rtx.eq(1)
        with m.Else():
            m.next = "SEND_NEW"

    with m.State("SEND_NEW"):
        with m.If(c.send_cwnd & c.in_window & (ctx.msg_send != ctx.msg_tail)):
            c.start_fetch(Fetch.SEND, ctx.next_psn)
            m.d.sync += [c.send_rtx.eq(0), c.fetch_new.eq(1)]
        with m.Else():
            m.next = "SEND_FAIL"

    with m.State("SEND_FAIL"):
        # Nothing to do until something wakes the QP; the walk over the QPs asks again in any case.
        m.d.sync += c.send_work.bit_select(c.qp, 1).eq(0)
        m.next = "IDLE"


def _select(c: Core) -> None:
    m, p, ctx, aux = c.m, c.params, c.ctx, c.aux
    rtx = c.send_rtx
    message = c.message
    packet = Signal(24)  # index in its message
    offset = Signal(36)
    first, last = Signal(), Signal()
    plen = Signal(13)
    size = Signal(14)
    va, laddr = Signal(64), Signal(64)
    is_head = Signal()
    full = Signal()

    with m.State("SEND_GOT"):
        m.d.sync += [
            packet.eq(c.psn - message.first_psn), first.eq(c.psn == message.first_psn), last.eq(c.psn == message.last_psn),
            is_head.eq(c.psn == c.head), c.need_credit.eq(~rtx), c.masked.eq(rtx), c.room.eq(c.ports.room),
        ]  # fmt: skip
        with m.If(~rtx & (ctx.send_pkt == 0) & message.imm_valid & (ctx.wimm_open >= c.config.peer_max_wimm)):
            m.next = "SEND_FAIL"
        with m.Else():
            m.d.sync += c.spray.start.eq(1)
            m.next = "SEND_SELECT"

    with m.State("SEND_SELECT"):
        m.d.sync += [
            offset.eq(packet << (c.config.mtu + Const(8, 4))), size.eq(size_of(c, last)),
            plen.eq(Mux(last, tail_length(c), Const(256) << c.config.mtu)),
        ]  # fmt: skip
        with m.If(c.spray.done):
            with m.If(c.spray.found):
                m.d.sync += [Value.cast(c.path).eq(c.spray.next_path), c.ev_at.eq(c.spray.evi)]
                m.next = "SEND_EV"
            with m.Else():
                m.next = "SEND_FAIL"

    with m.State("SEND_EV"):
        c.ev_ram.read(m, c.at_ev(c.ev_at))
        c.value_ram.read(m, c.at_ev(c.ev_at))
        m.d.sync += [va.eq(message.raddr + offset), laddr.eq(message.laddr + offset)]
        m.next = "SEND_LOAD"

    with m.State("SEND_LOAD"):
        m.d.sync += [Value.cast(c.ev).eq(c.ev_ram.data), c.value.eq(c.value_ram.data)]
        m.next = "SEND_ACCOUNT"

    with m.State("SEND_ACCOUNT"):
        bit = c.psn[:6]
        credit = (c.ev.credit + 1)[:16]
        c.put_credit(credit)
        m.d.sync += [
            full.eq(credit >= c.config.path_credit),
            ctx.inflight.eq(ctx.inflight + size), ctx.tx_pending.eq(ctx.tx_pending + 1),
            c.record.evi.eq(c.ev_at), c.record.tick.eq(c.wire_now), c.record.rtx.eq(rtx),
            c.row.out.bit_select(bit, 1).eq(1), c.row.lost.bit_select(bit, 1).eq(0),
        ]  # fmt: skip
        with m.If(~ctx.probe_on):
            m.d.sync += [ctx.probe_on.eq(1), ctx.probe_ref.eq(c.now)]
        with m.If(rtx):
            m.d.sync += [aux.lost_cnt.eq(aux.lost_cnt - 1), aux.lost_ptr.eq(c.psn)]
            with m.If(is_head):
                m.d.sync += ctx.head_free.eq(0)
        with m.Else():
            m.d.sync += [
                c.record.slot.eq(ctx.msg_send), c.record.end.eq(last),
                ctx.next_psn.eq(ctx.next_psn + 1), ctx.unretired.eq(ctx.unretired + 1), ctx.sent_total.eq(ctx.sent_total + size),
                ctx.send_pkt.eq(Mux(last, 0, ctx.send_pkt + 1)), ctx.msg_send.eq(ctx.msg_send + last),
                ctx.wimm_open.eq(ctx.wimm_open + (first & message.imm_valid)),
            ]  # fmt: skip
        m.next = "SEND_COMMIT"

    with m.State("SEND_COMMIT"):
        wimm_stop = (ctx.send_pkt == 0) & (ctx.wimm_open >= c.config.peer_max_wimm)
        ask = rtx | full | ~c.cwnd_ok | ~c.in_window | (ctx.msg_send == ctx.msg_tail) | wimm_stop
        imm = last & message.imm_valid
        opcode = Signal(8)
        with m.If(first):
            m.d.comb += opcode.eq(Mux(last, Mux(imm, Opcode.WRITE_ONLY_IMM, Opcode.WRITE_ONLY), Opcode.WRITE_FIRST))
        with m.Else():
            m.d.comb += opcode.eq(Mux(last, Mux(imm, Opcode.WRITE_LAST_IMM, Opcode.WRITE_LAST), Opcode.WRITE_MIDDLE))
        headers = {"rqmsn": message.rqmsn, "msn": message.msn, "va": va, "rkey": message.rkey, "dmalen": message.length,
                   "imm": Mux(imm, message.imm, 0)}  # fmt: skip
        tx = {"opcode": opcode, "a": ask, "rtx": rtx, "psn": c.psn, "evi": c.ev_at, "plane": plane_of(p, c.ev_at), "ev": c.value,
              "laddr": laddr, "plen": plen, "send_tick": c.record.tick}  # fmt: skip
        put_tx(c, tx)
        m.d.sync += [c.tx.ext.data[name].eq(value) for name, value in headers.items()]
        m.d.comb += [c.save_row.eq(1), c.save_record.eq(1), c.save_ev.eq(1)]
        c.commit(Kind.SEND, room=c.room, fallback=c.spray.fallback, credit=c.ev.credit, **tx, **headers)
        m.next = "IDLE"


def put_tx(c: Core, fields: dict[str, Value]) -> None:
    """Hands a descriptor of the loaded QP to the output register; fields not named are 0."""
    m = c.m
    m.d.sync += [Value.cast(c.tx).eq(0), c.tx.qp.eq(c.qp), c.tx_valid.eq(1)]
    m.d.sync += [Value.cast(c.tx[name]).eq(value) for name, value in fields.items()]



