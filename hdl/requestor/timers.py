"""The slow walk over the QPs: EV_AGE, TIMEOUT and PROBE steps. Each visit looks at some EVs of one QP and then at its timers."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal

from hdl.requestor.bits import first_cyclic, plane_of
from hdl.requestor.core import Core, Fetch, one_more
from hdl.requestor.evchange import EvOp
from hdl.requestor.send import put_tx
from model import spec
from model.spec import Kind, Opcode, QpState, WcStatus

WALK_CLOCKS = 32  # clocks between two visits, if nothing delays them
AGE_LIMIT = spec.EV_MATCH_MAX_AGE // 2  # ticks


def ages_per_visit(qps: int, total_evs: int, tick_div: int) -> int:
    """EVs to look at per visit so that each is seen every 2^12 ticks: half of the time between AGE_LIMIT and its end."""
    return max(1, min(total_evs, -(-WALK_CLOCKS * qps * total_evs // (4096 * tick_div))))


def add(c: Core) -> None:
    """States WALK, AGE*, TIMEOUT*, PROBE*."""
    m, p, ctx = c.m, c.params, c.ctx
    due_timeout, due_tail, due_ev = Signal(), Signal(), Signal()
    age_count = Signal(range(p.total_evs + 1))
    per_visit = ages_per_visit(p.qps, p.total_evs, p.tick_div)

    with m.State("WALK"):
        live = (ctx.state == QpState.RTS) & ~c.blocked
        probe_time = ctx.want_probe | ctx.probe_on & c.reached(ctx.probe_ref + c.globals.probe_time)
        m.d.sync += [
            due_timeout.eq((ctx.state == QpState.RTS) & ctx.timer_on & c.reached(ctx.timer_deadline)),
            due_tail.eq(live & ~c.tx_valid & probe_time),
            due_ev.eq(live & ~c.tx_valid & ctx.bad_probe_on & c.reached(ctx.bad_probe_at)),
            age_count.eq(per_visit), c.ev_at.eq(c.age_evi),
        ]  # fmt: skip
        with m.If(live & ((c.aux.lost_cnt != 0) | (ctx.msg_send != ctx.msg_tail))):
            c.wake()
        m.next = "AGE"

    with m.State("AGE"):
        c.ev_ram.read(m, c.at_ev(c.ev_at))
        m.next = "AGE_GOT"

    with m.State("AGE_GOT"):
        entry = c.ev_ram.data
        m.d.sync += [c.ev.eq(entry), age_count.eq(age_count - 1)]
        with m.If(entry.match_valid & ((c.now - entry.match_time)[:32] >= AGE_LIMIT)):
            m.next = "AGE_CLEAR"
        with m.Else():
            m.next = "AGE_NEXT"

    with m.State("AGE_CLEAR"):
        m.d.sync += c.ev.match_valid.eq(0)
        m.d.comb += c.save_ev.eq(1)
        c.commit(Kind.EV_AGE, evi=c.ev_at)
        m.next = "AGE_NEXT"

    with m.State("AGE_NEXT"):
        with m.If(age_count != 0):
            m.d.sync += c.ev_at.eq((c.ev_at + 1) & (p.total_evs - 1))
            m.next = "AGE"
        with m.Else():
            m.next = "TIMERS"

    with m.State("TIMERS"):
        m.d.sync += [c.room.eq(c.ports.room), c.need_credit.eq(0), c.masked.eq(0)]
        with m.If(due_timeout):
            m.next = "TIMEOUT"
        with m.Elif(due_tail):
            m.d.sync += c.spray.start.eq(1)
            m.next = "PROBE_SELECT"
        with m.Elif(due_ev):
            m.next = "PROBE_BAD"
        with m.Else():
            m.next = "IDLE"

    _timeout(c)
    _probe(c, due_ev)


def _timeout(c: Core) -> None:
    m, ctx = c.m, c.ctx
    head_lost = Signal()

    with m.State("TIMEOUT"):
        m.d.sync += [ctx.expiry.eq(one_more(ctx.expiry)), ctx.retry.eq(one_more(ctx.retry)), head_lost.eq(0)]
        with m.If(c.retry_limit):
            m.next = "TIMEOUT_FAIL"
        with m.Elif(c.all_acked):
            m.d.sync += ctx.want_probe.eq(1)
            m.next = "TIMEOUT_COMMIT"
        with m.Else():
            c.start_fetch(Fetch.TIMEOUT, c.head)

    with m.State("TIMEOUT_FAIL"):
        c.commit(Kind.TIMEOUT)
        c.follow_error(WcStatus.RETRY_EXCEEDED)

    with m.State("TIMEOUT_GOT"):
        with m.If(c.row.out.bit_select(c.psn[:6], 1)):
            m.d.sync += [head_lost.eq(1), ctx.head_free.eq(1)]
            c.start_ev(EvOp.BAD, "TIMEOUT_CHANGE")
        with m.Elif(c.row.lost.bit_select(c.psn[:6], 1)):
            m.d.sync += [ctx.hold.eq(0), ctx.head_free.eq(1)]
            m.next = "TIMEOUT_COMMIT"
        with m.Else():
            m.d.sync += ctx.want_probe.eq(1)
            m.next = "TIMEOUT_COMMIT"

    with m.State("TIMEOUT_CHANGE"):
        with m.If(c.evchange.done):
            c.take_ev_change()
            m.next = "TIMEOUT_LOSE"

    with m.State("TIMEOUT_LOSE"):
        c.lose()
        m.next = "TIMEOUT_COMMIT"

    with m.State("TIMEOUT_COMMIT"):
        m.d.sync += ctx.timer_deadline.eq(c.now + c.t_next)
        c.wake()
        c.commit(Kind.TIMEOUT, head_lost=head_lost, evi=Mux(head_lost, c.ev_at, 0), credit=Mux(head_lost, c.ev.credit, 0))
        m.next = "IDLE"


def _probe(c: Core, due_ev: Signal) -> None:
    m, p, ctx = c.m, c.params, c.ctx
    slot = Signal()
    chosen = Signal(p.evi_bits)
    some = Signal()
    none_bad = Signal()

    with m.State("PROBE_SELECT"):
        m.d.sync += slot.eq(0)
        with m.If(c.spray.done):
            with m.If(c.spray.found):
                m.d.sync += [c.path.eq(c.spray.next_path), c.ev_at.eq(c.spray.evi)]
                m.next = "PROBE_EV"
            with m.Elif(due_ev):
                m.next = "PROBE_BAD"
            with m.Else():
                m.next = "IDLE"

    with m.State("PROBE_BAD"):
        usable = [c.path.planes[n].bad & (c.port_up & c.room)[n].replicate(p.evs) for n in range(p.planes)]
        found, index = first_cyclic(c.logic, Cat(usable), ctx.bad_probe_evi + Const(1, 1))
        m.d.sync += [
            some.eq(found), chosen.eq(index), slot.eq(1), c.ev_at.eq(ctx.ev_slot.evi),
            none_bad.eq(~Cat(c.path.planes[n].bad for n in range(p.planes)).any()),
        ]  # fmt: skip
        m.next = "PROBE_BAD_GOT"

    with m.State("PROBE_BAD_GOT"):
        c.ev_ram.read(m, c.at_ev(c.ev_at))
        with m.If(none_bad):  # the EV probes end
            m.d.sync += ctx.bad_probe_on.eq(0)
            c.commit(Kind.PROBE, room=c.room, slot=1)
            m.next = "IDLE"
        with m.Elif(~some):
            m.next = "IDLE"
        with m.Elif(ctx.ev_slot.valid):
            m.next = "PROBE_UNANSWERED"
        with m.Else():
            m.d.sync += c.ev_at.eq(chosen)
            m.next = "PROBE_EV"

    with m.State("PROBE_UNANSWERED"):
        m.d.sync += [c.ev.eq(c.ev_ram.data), c.ev.probe_ok.eq(0)]
        m.d.comb += c.save_ev.eq(1)
        m.next = "PROBE_NEW"

    with m.State("PROBE_NEW"):
        m.d.sync += c.ev_at.eq(chosen)
        m.next = "PROBE_EV"

    with m.State("PROBE_EV"):
        c.value_ram.read(m, c.at_ev(c.ev_at))
        m.next = "PROBE_COMMIT"

    with m.State("PROBE_COMMIT"):
        probe_id = Cat(ctx.probe_count, slot)
        value = c.value_ram.data
        for bit, target in ((0, ctx.tail_slot), (1, ctx.ev_slot)):
            with m.If(slot == bit):
                m.d.sync += [target.valid.eq(1), target.id.eq(probe_id), target.evi.eq(c.ev_at), target.tick.eq(c.wire_now)]
        with m.If(slot):
            m.d.sync += [ctx.bad_probe_evi.eq(c.ev_at), ctx.bad_probe_at.eq(c.now + c.t1)]
        with m.Else():
            m.d.sync += [ctx.want_probe.eq(0), ctx.probe_ref.eq(c.now)]
        m.d.sync += [ctx.probe_count.eq(ctx.probe_count + 1), ctx.tx_pending.eq(ctx.tx_pending + 1)]
        sent = {"plane": plane_of(p, c.ev_at), "evi": c.ev_at, "ev": value, "send_tick": c.wire_now}
        put_tx(c, {"opcode": Const(Opcode.PROBE, 8), **sent})
        m.d.sync += c.tx.ext.probe.probe_id.eq(probe_id)
        c.commit(Kind.PROBE, room=c.room, slot=slot, id=probe_id, **sent)
        m.next = "IDLE"
