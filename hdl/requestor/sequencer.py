"""Arbitration and loading: which input or work is served next. One transaction at a time; a transaction is one or several steps of one QP.

The classes take turns (rotating priority), so each is served within eight transactions; inside a class the QPs rotate. A transaction is
bounded: the longest are a SACK or ACK with its RETIRE and JUDGE steps (about 12 clocks per PSN that it moves) and a RESET (one clock per EV).
"""

from __future__ import annotations

from amaranth.hdl import Cat, Signal, Value

from hdl.requestor.bits import any_first, first_cyclic
from hdl.requestor.core import Core
from hdl.requestor.timers import WALK_CLOCKS, ages_per_visit
from model.spec import WcStatus

CLASSES = ("CMD", "PORT", "PEER", "DEPART", "RX", "COMPLETE", "WALK", "SEND")


def add(c: Core) -> None:
    """States IDLE, LOAD, LOADED, PEER."""
    m, p, ports = c.m, c.params, c.ports
    walk_qp = Signal(p.qp_bits)
    complete_qp = Signal(p.qp_bits)
    send_qp = Signal(p.qp_bits)
    turn = Signal(3)
    chosen = Signal(3)
    next_qp = Signal(p.qp_bits)
    loaded = Signal()  # the working registers hold QP ``qp``
    per_visit = ages_per_visit(p.qps, p.total_evs, p.tick_div)

    complete_some, complete_first = first_cyclic(c.logic, c.complete_work, complete_qp)
    send_some, send_first = first_cyclic(c.logic, c.send_work, send_qp)
    requests = {
        "CMD": (ports.cmd.valid & ~c.status_valid & (~c.reset_wait | c.reset_retry), c.cmd_qp),
        "PORT": ((ports.up & c.admin) != c.port_up, None),
        "PEER": (ports.peer_error_in.valid, ports.peer_error_in.payload.qp),
        "DEPART": (ports.depart.valid, ports.depart.payload.qp),
        "RX": (ports.rx.valid, ports.rx.payload.qp),
        "COMPLETE": (complete_some & ~c.completion_valid, complete_first),
        "WALK": (c.walk_due, walk_qp),
        "SEND": (send_some & ~c.tx_valid & (ports.room & c.port_up).any(), send_first),
    }

    with m.State("IDLE"):
        some, winner = first_cyclic(c.logic, Cat(requests[name][0] for name in CLASSES), turn)
        with m.If(some):
            m.d.sync += [chosen.eq(winner), turn.eq(winner + 1), c.now.eq(ports.tick)]
            m.next = "LOAD"
            with m.Switch(winner):
                for index, name in enumerate(CLASSES):
                    with m.Case(index):
                        qp = requests[name][1]
                        m.d.sync += next_qp.eq(0 if qp is None else qp)
                        if name == "COMPLETE":
                            m.d.sync += complete_qp.eq(complete_first + 1)
                        if name == "SEND":
                            m.d.sync += send_qp.eq(send_first + 1)
                        if name == "WALK":
                            m.d.sync += [c.walk_due.eq(0), walk_qp.eq((walk_qp + 1) & (p.qps - 1))]
                            with m.If(walk_qp == p.qps - 1):
                                m.d.sync += c.age_evi.eq((c.age_evi + per_visit) & (p.total_evs - 1))

    def go() -> None:
        with m.Switch(chosen):
            for index, name in enumerate(CLASSES):
                with m.Case(index):
                    m.next = name

    with m.State("LOAD"):
        c.qp_ram.read(m, next_qp)
        c.path_ram.read(m, next_qp)
        c.config_ram.read(m, next_qp)
        with m.If(loaded & (c.qp == next_qp)):
            go()
        with m.Else():
            m.next = "LOADED"

    with m.State("LOADED"):
        word = c.qp_ram.data
        m.d.sync += [
            Value.cast(c.ctx).eq(word.ctx), Value.cast(c.aux).eq(word.aux), Value.cast(c.path).eq(c.path_ram.data),
            Value.cast(c.config).eq(c.config_ram.data), c.qp.eq(next_qp), loaded.eq(1),
        ]  # fmt: skip
        go()

    with m.State("PEER"):
        m.d.comb += ports.peer_error_in.ready.eq(1)
        m.next = "IDLE"
        with m.If((c.ctx.state == 1) | (c.ctx.state == 2) | (c.ctx.state == 3)):
            c.follow_error(WcStatus.LOCAL_QP_OPERATION, tell=False)


def add_around(c: Core) -> None:
    """What runs beside the states, which may override it: wake-ups, output registers (held until accepted)."""
    m, ports, p = c.m, c.ports, c.params
    room_before = Signal(p.planes)
    walk_timer = Signal(range(WALK_CLOCKS))
    m.d.sync += room_before.eq(ports.room)
    with m.If((ports.room & ~room_before).any()):
        m.d.sync += c.send_work.eq((1 << p.qps) - 1)
    m.d.sync += walk_timer.eq(walk_timer + 1)
    with m.If(walk_timer == WALK_CLOCKS - 1):
        m.d.sync += c.walk_due.eq(1)
    error_some, error_first = any_first(c.logic, c.error_out)
    for valid, stream, payload in ((c.tx_valid, ports.tx, c.tx), (c.completion_valid, ports.completion, c.completion)):
        m.d.comb += [stream.valid.eq(valid), Value.cast(stream.payload).eq(payload)]
        with m.If(stream.ready):
            m.d.sync += valid.eq(0)
    m.d.comb += [ports.status.valid.eq(c.status_valid), ports.status.payload.status.eq(c.status)]
    with m.If(ports.status.ready):
        m.d.sync += c.status_valid.eq(0)
    told = Signal(c.params.qp_bits)
    telling = Signal()
    m.d.comb += [ports.peer_error_out.valid.eq(telling), ports.peer_error_out.payload.qp.eq(told)]
    with m.If(telling & ports.peer_error_out.ready):
        m.d.sync += telling.eq(0)
    with m.If(~telling & error_some):
        m.d.sync += [telling.eq(1), told.eq(error_first), c.error_out.bit_select(error_first, 1).eq(0)]
