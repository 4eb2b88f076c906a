"""Memories of the requestor: one wide word per QP, EV, message, sent PSN and bitmap row. Registered reads, one write port each."""

from __future__ import annotations

from functools import cached_property

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data
from amaranth.lib.memory import Memory

from hdl.layouts import Layouts
from hdl.params import Params


class Ram:
    """A memory with one write port and registered reads.

    ``addr`` and ``en`` (a state raises it) give ``data`` in the next clock; ``data`` holds until the next enabled read. A read in the clock of a
    write to the same word gives the old word: users leave one clock between. ``second`` (if asked for) reads every clock.
    """

    def __init__(self, m: Module, name: str, shape: data.Layout | int, depth: int, second: bool = False) -> None:
        memory = Memory(shape=shape, depth=depth, init=[])
        m.submodules[name] = memory
        self.depth = depth
        self._write = memory.write_port()
        self._read = memory.read_port()
        self.data = self._read.data
        self.addr: Value = self._read.addr
        self.en: Value = self._read.en
        self.second = memory.read_port() if second else None
        m.d.comb += self._read.en.eq(0)

    def read(self, m: Module, addr: Value) -> None:
        """Address of this clock's read, called inside the state that reads."""
        m.d.comb += [self.addr.eq(addr), self.en.eq(1)]

    def connect_write(self, m: Module, enable: Value, addr: Value, word: Value) -> None:
        """The only writer."""
        m.d.comb += [self._write.en.eq(enable), self._write.addr.eq(addr), Value.cast(self._write.data).eq(word)]


class RequestorLayouts(Layouts):
    """Layouts that only the requestor uses."""

    @cached_property
    def aux(self) -> data.StructLayout:
        """Per QP, derived from the records and bitmaps (not protocol state, not traced)."""
        return data.StructLayout({
            "lost_cnt": self.p.window_bits + 1,  # PSNs in LOST
            "lost_ptr": 24,  # none LOST lies before it
        })  # fmt: skip

    @cached_property
    def qp_word(self) -> data.StructLayout:
        return data.StructLayout({"ctx": self.req_ctx, "aux": self.aux})

    @cached_property
    def row(self) -> data.StructLayout:
        """State bits of 64 PSNs; neither = ACKED or never sent."""
        return data.StructLayout({"out": 64, "lost": 64})

    @cached_property
    def config(self) -> data.StructLayout:
        """What the requestor keeps of QP_CONFIG."""
        return data.StructLayout({
            "mtu": 3, "ipv4": 1, "sq_psn": 24, "req_mpr": 16, "peer_max_wimm": 16, "timer_exp": 5, "linear_cnt": 3, "exp_cnt": 5,
            "cwnd": 24, "path_credit": 16, "ev_min_active": 8, "lfsr_seed": 16,
        })  # fmt: skip

    @cached_property
    def global_config(self) -> data.StructLayout:
        """What the requestor keeps of GLOBAL_CONFIG."""
        return data.StructLayout({
            "reo_wnd": 16, "probe_time": 16, "nack_retx_time": 32, "spray_in_order": 1, "evidence_first_only": 1, "cwnd_rule_below": 1,
        })  # fmt: skip


class Contexts:
    """All memories and the registers through which they are written.

    A step changes the working registers and raises a ``*_save`` in the same clock; the word goes to memory in the clock after.
    """

    def __init__(self, m: Module, params: Params, layouts: RequestorLayouts) -> None:
        p = params
        qps = 1 << p.qp_bits
        self.qp_ram = Ram(m, "qp_ram", layouts.qp_word, qps)
        self.path_ram = Ram(m, "path_ram", layouts.path, qps, second=True)
        self.config_ram = Ram(m, "config_ram", layouts.config, qps)
        self.value_ram = Ram(m, "value_ram", 32, qps << p.evi_bits, second=True)
        self.ev_ram = Ram(m, "ev_ram", layouts.ev_entry, qps << p.evi_bits)
        self.msg_ram = Ram(m, "msg_ram", layouts.message, qps << p.slot_bits)
        self.record_ram = Ram(m, "record_ram", layouts.send_record, qps << p.window_bits)
        self.row_ram = Ram(m, "row_ram", layouts.row, qps << p.row_bits)

        # Working registers.
        self.qp = Signal(p.qp_bits)
        self.ctx = Signal(layouts.req_ctx)
        self.aux = Signal(layouts.aux)
        self.path = Signal(layouts.path)
        self.config = Signal(layouts.config)
        self.record = Signal(layouts.send_record)
        self.row = Signal(layouts.row)
        self.ev = Signal(layouts.ev_entry)
        self.value = Signal(32)
        self.message = self.msg_ram.data  # held by the read port
