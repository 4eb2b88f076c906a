"""Fetch of everything about one sent packet: record and bitmap row, then EV and message. Three clocks, then the state of the step."""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Value

from hdl.requestor.core import Core, Fetch
from hdl.requestor.evchange import health_bits


def add(c: Core) -> None:
    """States FETCH, FETCH_EV, FETCH_DONE. Start with :meth:`Core.start_fetch`."""
    m, p = c.m, c.params
    with m.State("FETCH"):
        c.record_ram.read(m, c.at_psn(c.psn))
        c.row_ram.read(m, c.at_row(c.psn[6:]))
        m.next = "FETCH_EV"

    with m.State("FETCH_EV"):
        evi = Mux(c.fetch_slot, c.fetch_evi, c.record_ram.data.evi)
        m.d.sync += [
            Value.cast(c.record).eq(c.record_ram.data), Value.cast(c.row).eq(c.row_ram.data),
            c.row_at.eq(c.psn[6:6 + p.row_bits]), c.ev_at.eq(evi),
        ]  # fmt: skip
        c.value_ram.read(m, c.at_ev(evi))
        c.ev_ram.read(m, c.at_ev(evi))
        c.msg_ram.read(m, c.at_msg(Mux(c.fetch_new, c.ctx.msg_send[:p.slot_bits], c.record_ram.data.slot)))
        with m.If(c.fetch == Fetch.DEPART):
            m.next = "DEPART_GOT"
        with m.Else():
            m.next = "FETCH_DONE"

    with m.State("FETCH_DONE"):
        m.d.sync += [
            c.value.eq(c.value_ram.data), Value.cast(c.ev).eq(c.ev_ram.data), c.size.eq(size_of(c, c.record.end)),
            Cat(c.ev_good, c.ev_skip, c.ev_bad, c.ev_active).eq(health_bits(p, c.path, c.ev_at)),
        ]  # fmt: skip
        with m.Switch(c.fetch):
            for step in Fetch:
                if step != Fetch.DEPART:
                    with m.Case(step):
                        m.next = f"{step.name}_GOT"


def tail_length(c: Core) -> Value:
    """Payload bytes of the last packet of the message just read: ((length - 1) mod MTU) + 1."""
    mask = Cat(*(c.config.mtu >= (i - 7) if i > 7 else 1 for i in range(12)))
    return ((c.message.length - 1)[:12] & mask) + 1


def size_of(c: Core, end: Value) -> Value:
    """Bytes in flight of a packet of the message just read: UDP length + 40 (IPv4 too), i.e. UDP 8, BTH 12, METH 4, TSETH 4, RETH 16, ICRC 4,
    [ImmDt 4], payload padded to 4, and 40."""
    padded = ((tail_length(c) + 3) & 0x3FFC)[:14]
    last = padded + Mux(c.message.imm_valid, 92, 88)
    return Mux(end, last, (0x100 << c.config.mtu)[:14] + 88)[:14]
