"""EMIT_ACK, EMIT_NACK, EMIT_SACK: reverse path, bitmap base, and the snapshot that a SACK carries (facts, sections 3 and 5).

Clocks after the context is loaded: EMIT (stale or no room: back), EMIT_ROW (path row of the exit plane, sweep rule), EMIT_PICK (EV, first bitmap row),
EMIT_EV (second bitmap row), EMIT_SHIFT (64 bits out of two rows), EMIT_SEND.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed

from hdl.responder.bits import bit_of, first_one, from_bit, item_of, sdiff, set_flag
from hdl.responder.shared import HOLD_CLOCKS, Job, Shared
from model import spec
from model.spec import Drop, Kind, Opcode, Syndrome


def emit_states(m: Module, s: Shared) -> None:
    p, ctx, cfg, head, ports = s.p, s.ctx, s.cfg, s.head, s.ports
    is_ack = s.job == Job.ACK
    is_sack = ~is_ack & (head.reason == 0)
    no_port = Signal()
    plane = Signal(p.plane_bits)
    room = Signal(p.planes)  # as it was when the step was admitted
    path = Signal(s.layouts.reverse_row)
    candidates, ahead = Signal(p.evs), Signal(p.evs)
    ev_index = Signal(p.ev_bits)
    ev = Signal(32)
    no_ev = Signal()
    e = s.epsn
    base, sweep_next, alt_next = Signal(24), Signal(24), Signal()
    low_row, bitmap = Signal(64), Signal(64)
    span = Signal(signed(24))  # R - e: the newest 64 PSNs lie that far beyond ePSN, when positive

    def row_address(psn_row: Value) -> Value:
        return Cat(psn_row[: p.row_bits], s.qp)

    with m.State("EMIT"):
        cause = Signal(p.plane_bits)
        m.d.comb += cause.eq(Mux(is_ack, s.hid.ack_plane, head.plane))
        any_up, exit_plane = s.effective_plane(cause)
        m.d.sync += [no_port.eq(~any_up), plane.eq(exit_plane), room.eq(ports.room), span.eq(sdiff(ctx.max_rcv_psn, (e + 63)[:24]))]
        m.next = "EMIT_ROW"
        with m.If(~is_ack & ~s.live):
            # the QP went to ERROR: its answers vanish
            s.pop(m)
            m.d.sync += s.store.eq(1)
            m.next = "IDLE"
        with m.Elif(any_up & ~bit_of(ports.room, exit_plane)):
            m.d.sync += s.hold_ack.eq(HOLD_CLOCKS)
            m.next = "IDLE"

    with m.State("EMIT_ROW"):
        m.d.sync += Value.cast(path).eq(Mux(no_port, 0, item_of(ports.path_row, plane)))
        m.d.sync += [alt_next.eq(ctx.alt), sweep_next.eq(ctx.sweep), base.eq(e)]
        newest = Mux(span > 0, (e + span)[:24], e)
        with m.If(~head.base_at_epsn):
            m.d.sync += [alt_next.eq(~ctx.alt), base.eq(newest)]
            with m.If(~ctx.alt & (span > 0)):
                inside = (ctx.sweep - e)[:24] < span[:24].as_unsigned()
                start = Mux(inside, ctx.sweep, e)
                m.d.sync += [base.eq(start), sweep_next.eq(start + 64)]
        m.next = "EMIT_PICK"

    with m.State("EMIT_PICK"):
        good = path.active & path.good
        usable = Mux(good != 0, good, ~path.denied)[: p.evs]
        m.d.sync += [candidates.eq(usable), ahead.eq(usable & from_bit(item_of(ctx.rev, plane), p.evs)), no_ev.eq(no_port | (usable == 0))]
        s.rows.read(m, row_address(base[6:]))
        m.next = "EMIT_EV"

    with m.State("EMIT_EV"):
        any_ahead, index_ahead = first_one(ahead)
        _, index_any = first_one(candidates)
        m.d.sync += [ev_index.eq(Mux(any_ahead, index_ahead, index_any)), low_row.eq(s.rows.rd_data.rcvd)]
        s.rows.read(m, row_address((base[6:] + 1)[:18]))
        m.next = "EMIT_SHIFT"

    ev_address = Cat(ev_index, plane) if p.evs > 1 else Cat(plane)
    m.d.comb += ports.path_ev_index.eq(ev_address if p.planes > 1 else ev_index)

    with m.State("EMIT_SHIFT"):
        m.d.sync += bitmap.eq((Cat(low_row, s.rows.rd_data.rcvd) >> base[:6])[:64])
        m.next = "EMIT_WAIT"

    with m.State("EMIT_WAIT"):
        m.d.sync += ev.eq(ports.path_ev)
        m.next = "EMIT_SEND"

    with m.State("EMIT_SEND"):
        m.next = "IDLE"
        dropped = Signal()
        m.d.comb += dropped.eq(no_ev)
        tx = s.tx
        syndrome = Mux(ctx.nak != 0, ctx.nak, Syndrome.ACK)
        ack_psn = Mux(ctx.nak != 0, ctx.nak_psn, ctx.done_psn)
        offset = Mux(head.pr, head.probe_id, (head.psn - ctx.cack_psn)[:16])
        sack_offset = sdiff(base, ctx.cack_psn)[:16]
        rcvd_bytes = ((ctx.rcvd_bytes + (spec.RCVD_UNIT - 1)) >> 8)[:24]
        mpr = Value.cast(cfg.rsp_mpr)[7:15]
        shown = {
            "dropped": dropped, "room": room, "plane": Mux(no_port, 0, plane), "ev_in_plane": Mux(dropped, 0, ev_index), "ev": Mux(dropped, 0, ev),
            "good": path.good, "active": path.active, "denied": path.denied,
        }  # fmt: skip
        with m.If(dropped):
            s.drop(m, Drop.NO_PORT)
        with m.Else():
            m.d.sync += [
                Value.cast(tx).eq(0), s.tx_valid.eq(1), tx.qp.eq(s.qp), tx.plane.eq(plane), tx.ev.eq(ev), tx.evi.eq(ports.path_ev_index),
                ctx.rev[plane].eq(ev_index),
            ]  # fmt: skip
        with m.If(is_ack):
            m.d.sync += set_flag(s.ack_set, s.qp).eq(0)
            s.commit(m, Kind.EMIT_ACK, shown | {"syndrome": Mux(dropped, 0, syndrome), "psn": Mux(dropped, 0, ack_psn),
                                                "aeth_msn": Mux(dropped, 0, ctx.done_msn)})  # fmt: skip
            with m.If(~dropped):
                aeth = tx.ext["ack"]
                m.d.sync += [tx.opcode.eq(Opcode.ACK), tx.psn.eq(ack_psn), tx.wr_stamp.eq(1), aeth.syndrome.eq(syndrome), aeth.aeth_msn.eq(ctx.done_msn)]
        with m.Elif(is_sack):
            s.pop(m)
            body = {"cack_psn": ctx.cack_psn, "sack_offset": sack_offset, "sack_bitmap": bitmap, "ack_psn_offset": offset,
                    "ooo_count": ctx.ooo_count[:15], "rcvd_bytes": rcvd_bytes, "mpr": mpr}  # fmt: skip
            s.commit(m, Kind.EMIT_SACK, shown | {"answer": head} | {k: Mux(dropped, 0, v) for k, v in body.items()})
            with m.If(~dropped):
                seth = tx.ext["sack"]
                m.d.sync += [
                    tx.opcode.eq(Opcode.SACK), tx.psn.eq(ctx.cack_psn),
                    seth.mflag.eq(head.mflag), seth.pr.eq(head.pr), seth.entropy.eq(head.ev), seth.echo_timestamp.eq(head.tick),
                    seth.spdcid.eq(cfg.dest_qpn), seth.dpdcid.eq(p.qpn_base + s.qp),
                    ctx.alt.eq(alt_next), ctx.sweep.eq(sweep_next), ctx.right_edge.eq(ctx.cack_psn + cfg.rsp_mpr),
                ]  # fmt: skip
                m.d.sync += [Value.cast(seth[name]).eq(Value.cast(value)) for name, value in body.items()]
        with m.Else():
            s.pop(m)
            s.commit(m, Kind.EMIT_NACK, shown | {"answer": head})
            with m.If(~dropped):
                neth = tx.ext["nack"]
                m.d.sync += [
                    tx.opcode.eq(Opcode.NACK), tx.psn.eq(head.psn), neth.nack_reason.eq(head.reason), neth.entropy.eq(head.ev),
                    neth.spdcid.eq(cfg.dest_qpn), neth.dpdcid.eq(p.qpn_base + s.qp), neth.nack_psn.eq(head.psn),
                    neth.cc_type.eq(2), neth.echo_timestamp.eq(head.tick),
                ]  # fmt: skip
