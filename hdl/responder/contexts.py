"""Memories of the responder. One read and one write port each, registered reads, nothing that grows with QPs x window in logic.

Every memory is wrapped in a :class:`Table`: the sequencer names an address in one clock and finds the word on ``data`` from the next clock on,
where it stays until the next read.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import REGION_CONFIG, Layouts
from hdl.responder.bits import first_one, from_bit

GLOBAL_BITS = data.StructLayout({"base_rtt": 16, "sack_threshold": 24, "sack_flush_time": 16, "oor_silent": 1})  # what the responder reads
CONFIG = data.StructLayout({"dest_qpn": 16, "mtu": 3, "rq_psn": 24, "rsp_mpr": 16, "trim_nack": 1})  # of QP_CONFIG; low bits of dest_qpn


class RspLayouts(Layouts):
    """Layouts that only the responder uses."""

    @cached_property
    def hidden(self) -> data.StructLayout:
        """Beside the compared context: not visible in its effects on the wire.

        ``queued``: entries of this QP in the answer queue. ``ack_plane``: where the pending ACK or NAK leaves. ``scan``: no unfinished message
        end lies below this PSN. ``a_head``: the last accepted packet had A and was ePSN, so ADVANCE decides about prev_ar.
        """
        return data.StructLayout({"queued": 16, "ack_plane": self.p.plane_bits, "scan": 24, "a_head": 1})

    @cached_property
    def word(self) -> data.StructLayout:
        return data.StructLayout({"ctx": self.rsp_ctx, "hid": self.hidden})

    @cached_property
    def row(self) -> data.StructLayout:
        """64 PSNs of one QP: received above cack_psn, ends of messages, ends of WriteIMMs."""
        return data.StructLayout({"rcvd": 64, "end": 64, "imm": 64})

    @cached_property
    def region(self) -> data.StructLayout:
        return REGION_CONFIG

    @cached_property
    def qp_event(self) -> data.StructLayout:
        return data.StructLayout({"qp": self.p.qp_bits})

    @cached_property
    def drop(self) -> data.StructLayout:
        """A pulse of one clock: one more frame of this spec.Drop cause."""
        return data.StructLayout({"valid": 1, "cause": 8})

    @cached_property
    def reverse_row(self) -> data.StructLayout:
        e = self.p.evs
        return data.StructLayout({"active": e, "good": e, "denied": e})

    @cached_property
    def reverse_rows(self) -> data.ArrayLayout:
        """What the requestor shows of one QP's path row."""
        return data.ArrayLayout(self.reverse_row, self.p.planes)


class Table(wiring.Component):
    """A memory of ``1 << address_bits`` words of ``shape``, all zero at the start."""

    def __init__(self, shape: data.StructLayout | int, address_bits: int) -> None:
        self._shape, self._bits = shape, address_bits
        super().__init__({
            "rd_en": In(1), "rd_addr": In(address_bits), "rd_data": Out(shape),
            "wr_en": In(1), "wr_addr": In(address_bits), "wr_data": In(shape),
        })  # fmt: skip

    def read(self, m: Module, address: Value) -> None:
        """In this state: ask for the word at ``address``."""
        m.d.comb += [self.rd_en.eq(1), self.rd_addr.eq(address)]

    def write(self, m: Module, address: Value, word: Any) -> None:
        """In this state: write ``word``."""
        m.d.comb += [self.wr_en.eq(1), self.wr_addr.eq(address), Value.cast(self.wr_data).eq(Value.cast(word))]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.mem = mem = memory.Memory(shape=self._shape, depth=1 << self._bits, init=[])
        rd, wr = mem.read_port(), mem.write_port()
        m.d.comb += [
            rd.en.eq(self.rd_en), rd.addr.eq(self.rd_addr), Value.cast(self.rd_data).eq(Value.cast(rd.data)),
            wr.en.eq(self.wr_en), wr.addr.eq(self.wr_addr), Value.cast(wr.data).eq(Value.cast(self.wr_data)),
        ]  # fmt: skip
        return m


class Picker(wiring.Component):
    """Rotating choice of one QP of a vector of flags; the choice is registered, so the user checks the flag again.

    ``taken`` moves the rotation behind the QP that is shown. Latency 1 clock.
    """

    def __init__(self, width: int, index_bits: int) -> None:
        self._width = width
        super().__init__({"flags": In(width), "taken": In(1), "valid": Out(1), "index": Out(index_bits)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        after = Signal(self._width)  # flags behind the one taken last
        any_after, index_after = first_one(self.flags & after)
        any_flag, index_flag = first_one(self.flags)
        m.d.sync += self.valid.eq(any_flag)
        with m.If(any_after):
            m.d.sync += self.index.eq(index_after)
        with m.Else():
            m.d.sync += self.index.eq(index_flag)
        with m.If(self.taken):
            m.d.sync += after.eq(from_bit(self.index, self._width) & ~(1 << self.index)[: self._width])
        return m


class FlushWalk(wiring.Component):
    """Walks over the QPs' flush deadlines, one QP in two clocks, and offers one that is due. A hint: the sequencer checks again.

    ``wr_*``: the sequencer writes (on, deadline) with every context that it stores. The walk stands still while ``due_valid``; ``taken`` lets it go on.
    """

    def __init__(self, qp_bits: int) -> None:
        self._bits = qp_bits
        super().__init__({
            "tick": In(32), "wr_en": In(1), "wr_qp": In(qp_bits), "wr_on": In(1), "wr_at": In(32),
            "due_valid": Out(1), "due_qp": Out(qp_bits), "taken": In(1),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = Table(data.StructLayout({"on": 1, "at": 32}), self._bits)
        m.d.comb += [table.wr_en.eq(self.wr_en), table.wr_addr.eq(self.wr_qp), table.wr_data.on.eq(self.wr_on), table.wr_data.at.eq(self.wr_at)]
        phase = Signal()
        with m.If(self.due_valid & self.taken):
            m.d.sync += [self.due_valid.eq(0), self.due_qp.eq(self.due_qp + 1)]
        with m.Elif(~self.due_valid & ~phase):
            table.read(m, self.due_qp)
            m.d.sync += phase.eq(1)
        with m.Elif(~self.due_valid):
            m.d.sync += phase.eq(0)
            with m.If(table.rd_data.on & ~(self.tick - table.rd_data.at)[31]):
                m.d.sync += self.due_valid.eq(1)
            with m.Else():
                m.d.sync += self.due_qp.eq(self.due_qp + 1)
        return m
