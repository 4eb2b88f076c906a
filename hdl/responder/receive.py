"""RECEIVE of a data packet or probe: admission, PSN class, packet checks, and what an accepted packet leaves behind (facts, section 3).

Three clocks on the loaded context: RECEIVE_MEASURE takes the differences and sums, RECEIVE_JUDGE decides what the packet is, RECEIVE acts. The
frame stays at the head of the ``rx`` stream until RECEIVE takes it.
"""

from __future__ import annotations

import enum as py_enum

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed

from hdl.responder.bits import bit_of, item_of, sdiff
from hdl.responder.shared import NOT_DROPPED, Shared
from model import spec
from model.spec import Drop, Kind, MFlag, NackReason, Opcode, QpState, Syndrome

IMM = tuple(int(code) for code in spec.IMM_OPCODES)
END = tuple(int(code) for code in spec.END_OPCODES)
DATA = tuple(sorted(spec.DATA_OPCODES))


class Act(py_enum.IntEnum):
    """What RECEIVE does with the packet."""

    DROP = 0  # counted under ``cause``, nothing else
    PROBE = 1
    PROBE_NAK = 2  # probe of a QP in ERROR: the NAK again
    DUPLICATE = 3
    AHEAD = 4  # beyond the window, with a NACK
    TRIMMED = 5
    REFUSE = 6
    ACCEPT = 7


def receive_states(m: Module, s: Shared) -> None:
    p, ctx, cfg, glob, rx = s.p, s.ctx, s.cfg, s.glob, s.ports.rx.payload
    ext = rx.ext["data"]
    region = s.regions.rd_data
    row = s.rows.rd_data  # the packet's row, as it was when the step began

    is_data, is_imm, is_end, is_probe = Signal(), Signal(), Signal(), Signal()
    m.d.comb += [
        is_data.eq(Value.cast(rx.opcode).matches(*DATA)), is_imm.eq(Value.cast(rx.opcode).matches(*IMM)),
        is_end.eq(Value.cast(rx.opcode).matches(*END)), is_probe.eq(~is_data),
    ]  # fmt: skip
    mtu = Signal(13)
    m.d.comb += mtu.eq(256 << cfg.mtu)
    tick = Signal(16)
    m.d.comb += tick.eq(Mux(is_probe, rx.ext["probe"].tx_timestamp, Mux(rx.ts, ext.tx_timestamp, 0)))
    bit = rx.psn[:6]

    # RECEIVE_MEASURE -> registers
    d = Signal(signed(spec.PSN_BITS))  # PSN - ePSN
    ahead, recorded, newest = Signal(), Signal(), Signal()
    bad_lengths, bad_stash, bad_key, wraps = Signal(), Signal(), Signal(), Signal()
    offset = Signal(65)  # VA - region's VA, with its borrow
    count = Signal(25)
    turn = Signal()  # the reverse EV of the plane may move
    # RECEIVE_JUDGE -> registers
    act, cause, syndrome = Signal(Act), Signal(8), Signal(8)
    addr = Signal(64)
    enough = Signal()

    with m.State("RECEIVE_MEASURE"):
        last = Signal(13)  # bytes of the message's last packet
        m.d.comb += last.eq(((ext.dmalen - 1)[:13] & (mtu - 1)[:13]) + 1)
        many = ext.dmalen > mtu
        wrong = Signal()
        with m.Switch(rx.opcode):
            with m.Case(Opcode.WRITE_FIRST):
                m.d.comb += wrong.eq(~many | (rx.plen != mtu))
            with m.Case(Opcode.WRITE_MIDDLE):
                m.d.comb += wrong.eq(rx.plen != mtu)
            with m.Case(Opcode.WRITE_LAST, Opcode.WRITE_LAST_IMM):
                m.d.comb += wrong.eq(~many | (rx.plen != last))
            with m.Default():
                m.d.comb += wrong.eq(many | (rx.plen != ext.dmalen))
        m.d.sync += [
            d.eq(sdiff(rx.psn, s.epsn)),
            # right_edge never passes cack_psn + rsp_mpr: it is some earlier cack_psn + rsp_mpr
            ahead.eq(sdiff(rx.psn, ctx.cack_psn + cfg.rsp_mpr) > 0),
            recorded.eq(bit_of(row.rcvd, bit)),
            newest.eq(sdiff(rx.psn, ctx.max_rcv_psn) > 0),
            # all headers are multiples of 4 bytes, so a right pad shows in the UDP length
            bad_lengths.eq(wrong | (ext.dmalen == 0) | (rx.udp_len[:2] != 0)),
            bad_stash.eq(is_imm & ((ext.rqmsn - ctx.next_rqmsn)[:16] >= p.max_wimm)),
            bad_key.eq(~region.valid | ~region.write | (region.rkey != ext.rkey)),
            wraps.eq((Value.cast(ext.va) + rx.plen) > (1 << 64)),
            offset.eq(Value.cast(ext.va) - Value.cast(region.va)),
            count.eq(ctx.trigger_cnt + Mux(rx.plen > spec.SACK_MIN_COUNT, rx.plen, spec.SACK_MIN_COUNT)),
            turn.eq(~(bit_of(ctx.rev_time_on, rx.plane) & ((s.now - item_of(ctx.rev_time, rx.plane))[:32] < glob.base_rtt))),
        ]  # fmt: skip
        m.next = "RECEIVE_JUDGE"

    with m.State("RECEIVE_JUDGE"):
        outside = offset[64] | ((offset[:64] + rx.plen) > region.length) | wraps

        def drop(why: Drop) -> None:
            m.d.sync += [act.eq(Act.DROP), cause.eq(why)]

        m.d.sync += [addr.eq((region.host + offset[:64])[:64]), enough.eq(count >= glob.sack_threshold), cause.eq(NOT_DROPPED)]
        in_error = ctx.state == QpState.ERROR
        with m.If(~rx.known):
            drop(Drop.UNKNOWN_QP)
        with m.Elif(in_error & (is_data | (ctx.nak == 0))):
            drop(Drop.QP_ERROR)
        with m.Elif(~in_error & ~s.live):
            drop(Drop.QP_STATE)
        with m.Elif(~rx.addr_ok):
            drop(Drop.ADDRESS)
        with m.Elif(~rx.pkey_ok):
            drop(Drop.PKEY)
        with m.Elif(is_probe):
            m.d.sync += act.eq(Mux(in_error, Act.PROBE_NAK, Act.PROBE))
        with m.Elif(d < -spec.ANCIENT):
            drop(Drop.ANCIENT)
        with m.Elif((d < 0) | (recorded & ~ahead)):
            m.d.sync += [act.eq(Act.DUPLICATE), cause.eq(Drop.DUPLICATE)]
        with m.Elif(ahead):
            m.d.sync += [act.eq(Mux(glob.oor_silent, Act.DROP, Act.AHEAD)), cause.eq(Drop.OUT_OF_WINDOW)]
        with m.Elif(rx.trimmed != 0):
            m.d.sync += act.eq(Act.TRIMMED)
            with m.If(~cfg.trim_nack):
                drop(Drop.TRIM_IGNORED)
        with m.Elif(bad_lengths | bad_stash):
            m.d.sync += [act.eq(Act.REFUSE), cause.eq(Drop.NAKED), syndrome.eq(Syndrome.NAK_INVALID_REQUEST)]
        with m.Elif(bad_key | outside):
            m.d.sync += [act.eq(Act.REFUSE), cause.eq(Drop.NAKED), syndrome.eq(Syndrome.NAK_REMOTE_ACCESS)]
        with m.Else():
            m.d.sync += act.eq(Act.ACCEPT)
        m.next = "RECEIVE"

    with m.State("RECEIVE"):
        m.next = "IDLE"
        accepted = act == Act.ACCEPT
        marked = Mux(rx.ce, MFlag.SKIP_ONCE, MFlag.NONE)
        m.d.comb += s.ports.rx.ready.eq(1)
        with m.If(is_data):
            m.d.sync += [
                s.verdict_valid.eq(1), s.verdict.write.eq(accepted), s.verdict.addr.eq(Mux(accepted, addr, 0)),
                s.verdict.plen.eq(rx.plen), s.verdict.qp.eq(s.qp),
            ]  # fmt: skip
        with m.If(cause != NOT_DROPPED):
            s.drop(m, cause)
        s.commit(m, Kind.RECEIVE, {"rx": rx, "drop": cause, "write": accepted, "addr": Mux(accepted, addr, 0), "no_resource": 0})
        with m.Switch(act):
            with m.Case(Act.PROBE):
                s.push(m, plane=rx.plane, base_at_epsn=1, pr=1, probe_id=rx.ext["probe"].probe_id, mflag=marked, ev=rx.ev, tick=tick)
                with m.If(ctx.ack_valid):
                    s.want_ack(m, rx.plane)
            with m.Case(Act.PROBE_NAK):
                s.want_ack(m, rx.plane)
            with m.Case(Act.DUPLICATE):
                s.push(m, plane=rx.plane, base_at_epsn=1, psn=rx.psn, mflag=marked, ev=rx.ev, tick=tick)
                with m.If((d < 0) & ctx.ack_valid):
                    s.want_ack(m, rx.plane)
                with m.If(turn):
                    m.d.sync += [
                        ctx.rev[rx.plane].eq(item_of(ctx.rev, rx.plane) + 1 if p.evs > 1 else 0),
                        ctx.rev_time[rx.plane].eq(s.now), ctx.rev_time_on[rx.plane].eq(1),
                    ]  # fmt: skip
            with m.Case(Act.AHEAD):
                s.push(m, plane=rx.plane, reason=NackReason.PSN_OOR_WINDOW, psn=rx.psn, ev=rx.ev, tick=tick)
            with m.Case(Act.TRIMMED):
                reason = Mux(rx.trimmed == 1, NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP)
                s.push(m, plane=rx.plane, reason=reason, psn=rx.psn, ev=rx.ev, tick=tick)
            with m.Case(Act.REFUSE):
                s.refuse(m, syndrome, rx.psn, rx.plane)
                m.next = "QP_ERROR"
            with m.Case(Act.ACCEPT):
                one = Signal(64)
                m.d.comb += one.eq(1 << bit)
                s.rows.write(m, Cat(rx.psn[6 : 6 + p.row_bits], s.qp), Cat(row.rcvd | one, row.end | Mux(is_end, one, 0), row.imm | Mux(is_imm, one, 0)))
                with m.If(is_imm):
                    # valid, imm, length, last_psn in the order of the layout
                    s.stash.write(m, Cat(ext.rqmsn[: s.wimm_bits], s.qp), Cat(1, ext.imm, ext.dmalen, rx.psn))
                hard = rx.a | rx.ce | rx.rtx
                m.d.sync += [
                    ctx.ooo_count.eq(ctx.ooo_count + 1), ctx.rcvd_bytes.eq(ctx.rcvd_bytes + rx.udp_len + spec.ROUTING_BYTES),
                    ctx.last_ev.eq(rx.ev), ctx.last_tick.eq(tick), ctx.last_plane.eq(rx.plane), ctx.last_psn.eq(rx.psn),
                    s.hid.a_head.eq(rx.a & (d == 0)),
                ]  # fmt: skip
                with m.If(newest):
                    m.d.sync += ctx.max_rcv_psn.eq(rx.psn)
                with m.If(rx.a & (d != 0)):
                    m.d.sync += ctx.prev_ar.eq(1)
                with m.If(hard | enough):
                    s.push(m, soft=~hard, plane=rx.plane, psn=rx.psn, mflag=marked, ev=rx.ev, tick=tick)
                with m.Else():
                    m.d.sync += ctx.trigger_cnt.eq(count)
                    with m.If(~ctx.flush_on & (glob.sack_flush_time != 0)):
                        m.d.sync += [ctx.flush_on.eq(1), ctx.flush_at.eq(s.now + glob.sack_flush_time)]
                with m.If(d == 0):
                    m.next = "ADVANCE_READ"
