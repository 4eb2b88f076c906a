"""RETIRE and JUDGE steps: what a SACK or ACK has acknowledged, PSN by PSN, and what its evidence proves lost.

They run at once after their SACK or ACK, before anything else is served. So between two inputs no acknowledged PSN is outstanding or lost,
and neither acknowledged bits nor evidence need a memory. First every row from the old to the new unack_psn is retired, then the two rows of
the bitmap (and the row of cack_psn + 1 if it is another) are retired and judged. Evidence that does not prove a loss now is dropped.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal

from hdl.requestor.bits import any_first, bind, clamp_row, rotate_left, serial, thermometer
from hdl.requestor.core import Core, Fetch
from hdl.requestor.evchange import EvOp
from model.spec import Kind


def add(c: Core) -> None:
    """States SWEEP (start), VISIT*, RETIRE_*, JUDGE_*; ends in RX_END."""
    m, ctx = c.m, c.ctx
    sack = c.ports.rx.payload.ext.sack

    row = Signal(18)  # logical row visited: PSN[6:]
    rotated = Signal(64)  # the bitmap on its two rows
    low = Signal(range(65))  # bits of the row below the first PSN of interest
    high = Signal(range(65))  # bits of the row up to the last one
    part = Signal(2)  # 0: rows up to unack_psn, 1 and 2: rows of the bitmap, 3: row of cack_psn + 1
    retire = Signal(64)
    suspects = Signal(64)  # covered by the evidence
    guilty = Signal(64)  # and sent early enough
    next_head = (sack.cack_psn + 1)[:24]
    start = (row << 6)[:24]

    with m.State("SWEEP"):
        m.d.sync += [row.eq(c.sweep_from[6:]), part.eq(0), low.eq(c.sweep_from[:6])]
        m.d.sync += rotated.eq(rotate_left(c.logic, sack.sack_bitmap, c.base[:6]))
        with m.If(ctx.unretired == 0):
            c.wake()
            m.next = "RX_END"
        with m.Else():
            m.next = "ROW_NEXT"

    with m.State("ROW_NEXT"):
        # Decides whether the row is of interest; the bounds are those of the PSNs that this part looks at.
        with m.If(part == 0):
            m.d.sync += high.eq(clamp_row(c.logic, (c.head - start)[:24]))
            with m.If(c.after(c.head, start)):
                m.next = "VISIT"
            with m.Elif(c.sweep_sack):
                m.d.sync += [part.eq(1), row.eq(c.base[6:])]
            with m.Else():
                c.wake()
                m.next = "RX_END"
        with m.Else():
            m.d.sync += [low.eq(clamp_row(c.logic, (c.head - start)[:24])), high.eq(clamp_row(c.logic, (ctx.next_psn - start)[:24]))]
            m.next = "VISIT"

    with m.State("VISIT"):
        c.row_ram.read(m, c.at_row(row))
        with m.If(low < high):
            m.next = "VISIT_GOT"
        with m.Else():
            m.next = "ROW_DONE"

    with m.State("VISIT_GOT"):
        bits = c.row_ram.data
        unacked = bits.out | bits.lost
        span = bind(c.logic, thermometer(c.logic, high, 64) & ~thermometer(c.logic, low, 64))
        below = thermometer(c.logic, c.base[:6], 64)
        here = bind(c.logic, Mux(part == 1, ~below, Mux(part == 2, below, 0))[:64])  # bits of this row that the bitmap speaks of
        acked = (rotated & here)[:64]
        first = Mux(next_head[6:] == row, (Const(1, 64) << next_head[:6])[:64], 0)[:64]
        covered = first | Mux(c.globals.evidence_first_only, 0, here & ~rotated)[:64]
        m.d.sync += [
            retire.eq(unacked & span & Mux(part == 0, ~Const(0, 64), acked)),
            suspects.eq(bits.out & span & covered & ~acked & Mux((part == 0) | (sack.echo_timestamp == 0), 0, ~Const(0, 64))),
            guilty.eq(0),
        ]  # fmt: skip
        m.next = "RETIRE_PICK"

    with m.State("RETIRE_PICK"):
        some, index = any_first(c.logic, retire)
        with m.If(some):
            m.d.sync += retire.eq(retire & (retire - 1))
            c.start_fetch(Fetch.RETIRE, Cat(index, row))
        with m.Elif(suspects != 0):
            m.next = "JUDGE_SCAN"
        with m.Else():
            m.next = "ROW_DONE"

    with m.State("RETIRE_GOT"):
        was_lost = c.row.lost.bit_select(c.psn[:6], 1)
        credit = (c.ev.credit - ~was_lost)[:16]
        with m.If(was_lost):
            m.d.sync += [ctx.inflight.eq(ctx.inflight + c.size), c.aux.lost_cnt.eq(c.aux.lost_cnt - 1)]
        with m.Else():
            c.put_credit(credit)
        m.d.sync += [
            c.row.out.bit_select(c.psn[:6], 1).eq(0), c.row.lost.bit_select(c.psn[:6], 1).eq(0),
            ctx.unretired.eq(ctx.unretired - 1),
        ]  # fmt: skip
        m.d.comb += c.save_row.eq(1)
        with m.If(ctx.unretired == 1):  # every sent PSN is ACKED now
            m.d.sync += [ctx.inflight.eq(0), ctx.rcvd_seen.eq(c.sent_units)]
        c.settle()
        c.commit(Kind.RETIRE, psn=c.psn, was_lost=was_lost, evi=c.ev_at, credit=credit)
        m.next = "RETIRE_PICK"

    _judge(c, row, suspects, guilty)

    with m.State("ROW_DONE"):
        m.d.sync += [row.eq(row + 1), low.eq(0)]
        m.next = "ROW_NEXT"
        with m.Switch(part):
            with m.Case(1):
                with m.If(c.base[:6] != 0):
                    m.d.sync += part.eq(2)
                with m.Else():
                    m.d.sync += [part.eq(3), row.eq(next_head[6:])]
                    with m.If(next_head[6:] == row):
                        c.wake()
                        m.next = "RX_END"
            with m.Case(2):
                m.d.sync += [part.eq(3), row.eq(next_head[6:])]
                with m.If((next_head[6:] == row) | (next_head[6:] == c.base[6:])):
                    c.wake()
                    m.next = "RX_END"
            with m.Case(3):
                c.wake()
                m.next = "RX_END"


def _judge(c: Core, row: Signal, suspects: Signal, guilty: Signal) -> None:
    """JUDGE: a scan over the suspects, one a clock, then a step for each guilty one."""
    m = c.m
    sack = c.ports.rx.payload.ext.sack
    index, index_valid = Signal(6), Signal()
    read, read_valid = Signal(6), Signal()
    proved = Signal()

    def late(tick_base: object) -> object:
        return serial(sack.echo_timestamp - tick_base, 16) > c.globals.reo_wnd  # type: ignore[operator]

    with m.State("JUDGE_SCAN"):
        some, first = any_first(c.logic, suspects)
        m.d.sync += [index.eq(first), index_valid.eq(some), suspects.eq(suspects & (suspects - 1))]
        c.record_ram.read(m, c.at_psn(Cat(index, row)))
        m.d.sync += [read.eq(index), read_valid.eq(index_valid)]
        with m.If(read_valid & late(c.record_ram.data.tick)):
            m.d.sync += guilty.bit_select(read, 1).eq(1)
        with m.If(~some & ~index_valid & ~read_valid):
            m.next = "JUDGE_PICK"

    with m.State("JUDGE_PICK"):
        some, first = any_first(c.logic, guilty)
        with m.If(some):
            m.d.sync += guilty.eq(guilty & (guilty - 1))
            c.start_fetch(Fetch.JUDGE, Cat(first, row))
        with m.Else():
            m.next = "ROW_DONE"

    with m.State("JUDGE_GOT"):
        answered_later = c.ev.match_valid & (serial(c.ev.match_tick - c.record.tick, 16) > 0)
        m.d.sync += proved.eq(~answered_later)
        with m.If(answered_later):
            m.next = "JUDGE_LOSE"
        with m.Else():
            c.start_ev(EvOp.BAD, "JUDGE_CHANGE")

    with m.State("JUDGE_CHANGE"):
        with m.If(c.evchange.done):
            c.take_ev_change()
            m.next = "JUDGE_LOSE"

    with m.State("JUDGE_LOSE"):
        credit = c.lose()
        c.commit(Kind.JUDGE, psn=c.psn, evi=c.ev_at, proved=proved, credit=credit)
        m.next = "JUDGE_PICK"
