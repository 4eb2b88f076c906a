"""SACK, NACK and DEPART steps, and the checks that every item of feedback passes first."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal, Value

from hdl.requestor.bits import serial
from hdl.requestor.core import Core, Fetch, one_more
from hdl.requestor.evchange import EvOp
from model import spec
from model.spec import Drop, Kind, MFlag, NackReason, QpState, WcStatus

NOT_DROPPED = 0xFF


def add(c: Core) -> None:
    """States RX (dispatch), SACK*, NACK*, DEPART*."""
    _rx(c)
    _sack(c)
    _nack(c)
    _depart(c)


def _rx(c: Core) -> None:
    m = c.m
    rx = c.ports.rx.payload
    with m.State("RX"):
        cause = Signal(8)
        in_error = c.ctx.state == QpState.ERROR
        m.d.comb += cause.eq(NOT_DROPPED)
        with m.If(~rx.known):
            m.d.comb += cause.eq(Drop.UNKNOWN_QP)
        with m.Elif(c.ctx.state != QpState.RTS):
            m.d.comb += cause.eq(Mux(in_error, Drop.QP_ERROR, Drop.QP_STATE))
        with m.Elif(~rx.addr_ok):
            m.d.comb += cause.eq(Drop.ADDRESS)
        with m.Elif(~rx.pkey_ok):
            m.d.comb += cause.eq(Drop.PKEY)
        refused = cause != NOT_DROPPED
        m.next = "RX_END"
        with m.Switch(rx.opcode):
            for opcode, kind in ((spec.Opcode.SACK, Kind.SACK), (spec.Opcode.NACK, Kind.NACK), (spec.Opcode.ACK, Kind.ACK)):
                with m.Case(opcode):
                    with m.If(refused):
                        c.drop(cause)
                        c.commit(kind, rx=rx, drop=cause)
                    with m.Else():
                        m.next = f"{kind.name}"
            with m.Default():
                c.drop(Drop.OPCODE)
    with m.State("RX_END"):
        m.d.comb += c.ports.rx.ready.eq(1)
        m.next = "IDLE"


def _sack(c: Core) -> None:
    m, ctx = c.m, c.ctx
    rx = c.ports.rx.payload
    sack = rx.ext.sack
    cack = sack.cack_psn
    refused = Signal(8)
    advance = Signal(24)  # of rcvd_bytes, 0 when it does not advance
    edge = Signal(24)
    fed_psn = Signal(24)
    found = Signal()
    matched = Signal()
    fed_tick = Signal(16)

    with m.State("SACK"):
        gain = (sack.rcvd_bytes - ctx.rcvd_seen)[:24]
        forged = c.after(sack.rcvd_bytes, c.sent_units)
        out_of_range = (serial(cack - ctx.unack_psn) < -spec.ANCIENT) | ~c.after(ctx.next_psn, cack)
        m.d.sync += [
            refused.eq(Mux(out_of_range, Drop.SACK_RANGE, Mux(forged, Drop.SACK_FORGED, NOT_DROPPED))),
            advance.eq(Mux(serial(gain) > 0, gain, 0)),
            edge.eq(cack + Mux(sack.mpr == 0, c.config.req_mpr, sack.mpr << 7)),
            fed_psn.eq(cack + sack.ack_psn_offset),
            found.eq(0), matched.eq(0), c.sweep_from.eq(c.head), c.base.eq(cack + sack.sack_offset),
        ]  # fmt: skip
        m.next = "SACK_CHECK"

    with m.State("SACK_CHECK"):
        with m.If(refused != NOT_DROPPED):
            c.drop(refused)
            c.commit(Kind.SACK, rx=rx, drop=refused)
            m.next = "RX_END"
        with m.Else():
            m.d.sync += ctx.inflight.eq(ctx.inflight - _shift8(advance))
            with m.If(advance != 0):
                m.d.sync += ctx.rcvd_seen.eq(sack.rcvd_bytes)
            with m.If(c.after(cack, ctx.unack_psn)):
                m.d.sync += ctx.unack_psn.eq(cack)
                c.progress(~c.idle)
            with m.If(c.after(edge, ctx.right_edge)):
                m.d.sync += ctx.right_edge.eq(edge)
            m.d.sync += ctx.probe_ref.eq(c.now)
            m.next = "SACK_WAKE"
            with m.If(sack.pr):
                probe_id = sack.ack_psn_offset.as_unsigned()
                for bit, slot in ((0, ctx.tail_slot), (1, ctx.ev_slot)):
                    with m.If((probe_id[15] == bit) & slot.valid & (slot.id == probe_id)):
                        m.d.sync += [slot.valid.eq(0), fed_tick.eq(slot.tick)]
                        c.start_fetch(Fetch.SACK, fed_psn)
                        m.d.sync += [c.fetch_slot.eq(1), c.fetch_evi.eq(slot.evi)]
            with m.Elif(c.usable(fed_psn)):
                c.start_fetch(Fetch.SACK, fed_psn)

    with m.State("SACK_GOT"):
        echo = sack.echo_timestamp
        same = c.entropy_equal(sack.entropy, c.value)
        tick = Mux(sack.pr, fed_tick, c.record.tick)
        m.d.sync += [found.eq(same), matched.eq(same & (echo != 0) & (echo == tick))]
        m.next = "SACK_EV"

    with m.State("SACK_EV"):
        echo = sack.echo_timestamp
        rtt = (c.now[:16] - echo)[:16]
        m.next = "SACK_WAKE"
        with m.If(matched):
            m.d.comb += c.save_ev.eq(1)
            m.d.sync += [c.ev.match_valid.eq(1), c.ev.match_time.eq(c.now)]
            with m.If(~c.ev.match_valid | (serial(echo - c.ev.match_tick, 16) > 0)):
                m.d.sync += c.ev.match_tick.eq(echo)
            with m.If(~rtt[15]):
                m.d.sync += [c.ev.rtt_valid.eq(1), c.ev.rtt_last.eq(rtt)]
                with m.If(~c.ev.rtt_valid | (rtt < c.ev.rtt_min)):
                    m.d.sync += c.ev.rtt_min.eq(rtt)
        with m.If(found):
            with m.If(c.ev_good | c.ev_skip):
                with m.If(sack.mflag == MFlag.SKIP_ONCE):
                    c.start_ev(EvOp.SKIP, "SACK_CHANGE")
                with m.If(sack.mflag == MFlag.ALWAYS_SKIP):
                    c.start_ev(EvOp.BAD, "SACK_CHANGE")
            with m.If(c.ev_bad & sack.pr):
                m.d.comb += c.save_ev.eq(1)
                with m.If(sack.mflag == MFlag.ALWAYS_SKIP):
                    m.d.sync += c.ev.probe_ok.eq(0)
                with m.Elif(sack.mflag <= MFlag.SKIP_ONCE):
                    m.d.sync += c.ev.probe_ok.eq(c.ev.probe_ok + 1)
                    with m.If(c.ev.probe_ok == spec.PROBE_ANSWERS_TO_RECOVER - 1):
                        m.d.sync += c.ev.probe_ok.eq(0)
                        c.start_ev(Mux(sack.mflag == MFlag.SKIP_ONCE, EvOp.RECOVER_SKIP, EvOp.RECOVER_GOOD), "SACK_CHANGE")

    with m.State("SACK_CHANGE"):
        with m.If(c.evchange.done):
            c.take_ev_change()
            m.next = "SACK_WAKE"

    with m.State("SACK_WAKE"):
        # The registers hold the state after the step but for the end of probing, which looks at it.
        c.settle()
        with m.If(~found):
            c.drop(Drop.EV_UNMATCHED)
        c.commit(Kind.SACK, rx=rx, drop=NOT_DROPPED, newly=_shift8(advance), evi=Mux(found, c.ev_at, 0), ev_found=found, matched=matched)
        m.d.sync += c.sweep_sack.eq(1)
        m.next = "SWEEP"


def _shift8(value: Value) -> Value:
    return Cat(Const(0, 8), value)


def _nack(c: Core) -> None:
    m, ctx = c.m, c.ctx
    rx = c.ports.rx.payload
    nack = rx.ext.nack
    trimmed = Signal()
    resource = Signal()
    fatal = Signal()

    with m.State("NACK"):
        m.d.sync += [trimmed.eq(0), resource.eq(0), fatal.eq(0)]
        with m.Switch(nack.nack_reason):
            with m.Case(NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP):
                m.d.sync += trimmed.eq(1)
            with m.Case(NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE, NackReason.PSN_OOR_WINDOW):
                m.d.sync += resource.eq(1)
            with m.Case(NackReason.UNEXP_EVENT):
                m.d.sync += fatal.eq(1)
        c.start_fetch(Fetch.NACK, nack.nack_psn)

    with m.State("NACK_GOT"):
        usable = c.usable(c.psn)
        out = c.row.out.bit_select(c.psn[:6], 1)
        echo = nack.echo_timestamp
        same = c.entropy_equal(nack.entropy, c.value) & ((echo == 0) | (echo == c.record.tick))
        with m.If(~(usable & out & same & (trimmed | resource | fatal))):
            c.drop(Drop.NACK_IGNORED)
            c.commit(Kind.NACK, rx=rx, drop=Drop.NACK_IGNORED)
            m.next = "RX_END"
        with m.Elif(fatal):
            c.commit(Kind.NACK, rx=rx, drop=NOT_DROPPED, evi=c.ev_at, credit=c.ev.credit)
            m.d.comb += c.ports.rx.ready.eq(1)
            c.follow_error(WcStatus.REMOTE_OPERATION)
        with m.Elif(nack.nack_reason == NackReason.TRIMMED):
            c.start_ev(EvOp.SKIP, "NACK_CHANGE")
        with m.Else():
            m.next = "NACK_LOSE"

    with m.State("NACK_CHANGE"):
        with m.If(c.evchange.done):
            c.take_ev_change()
            m.next = "NACK_LOSE"

    with m.State("NACK_LOSE"):
        credit = c.lose()
        m.d.sync += ctx.probe_ref.eq(c.now)
        with m.If(resource):
            wait = Mux(c.globals.nack_retx_time == 0, c.t1 >> 2, c.globals.nack_retx_time)
            m.d.sync += [ctx.hold.eq(1), ctx.hold_until.eq(c.now + wait)]
        c.wake()
        c.commit(Kind.NACK, rx=rx, drop=NOT_DROPPED, evi=c.ev_at, credit=credit)
        m.d.comb += c.ports.rx.ready.eq(1)
        m.next = "IDLE"
        with m.If((c.psn == c.head) & ~(ctx.nack_block & ~c.reached(ctx.nack_block_until))):
            m.d.sync += [ctx.retry.eq(one_more(ctx.retry)), ctx.nack_block.eq(1), ctx.nack_block_until.eq(c.now + c.t1)]
            with m.If(c.retry_limit):
                c.follow_error(WcStatus.RETRY_EXCEEDED)


def _depart(c: Core) -> None:
    m, ctx = c.m, c.ctx
    depart = c.ports.depart.payload
    with m.State("DEPART"):
        c.start_fetch(Fetch.DEPART, depart.psn)

    with m.State("DEPART_GOT"):
        out = c.row.out.bit_select(c.psn[:6], 1)
        usable = c.usable(c.psn)
        live = (ctx.state == QpState.RTS) & ~depart.dropped & ~depart.read_error
        same = (c.record.evi == depart.evi) & (c.record.tick == depart.send_tick)
        applied = Signal()
        with m.If(live & ~depart.probe & usable & out & same):
            m.d.comb += [applied.eq(1), c.save_record.eq(1)]
            m.d.sync += c.record.tick.eq(depart.tick)
        with m.If(live & depart.probe):
            hits = [(slot.evi == depart.evi) & (slot.tick == depart.send_tick) for slot in (ctx.tail_slot, ctx.ev_slot)]
            with m.If(hits[0]):
                m.d.comb += applied.eq(1)
                m.d.sync += ctx.tail_slot.tick.eq(depart.tick)
            with m.Elif(hits[1]):
                m.d.comb += applied.eq(1)
                m.d.sync += ctx.ev_slot.tick.eq(depart.tick)
        m.d.sync += [ctx.tx_pending.eq(ctx.tx_pending - 1), c.reset_retry.eq(1)]
        m.d.comb += c.ports.depart.ready.eq(1)
        c.commit(Kind.DEPART, probe=depart.probe, psn=depart.psn, evi=depart.evi, send_tick=depart.send_tick, tick=depart.tick,
                 dropped=depart.dropped, read_error=depart.read_error, applied=applied)  # fmt: skip
        m.next = "IDLE"
        with m.If(depart.read_error & (ctx.state == QpState.RTS)):
            c.follow_error(WcStatus.LOCAL_MEMORY)
