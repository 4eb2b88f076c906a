"""AXI4 and AXI4-Lite port bundles with AMBA member names, seen from the manager."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

RESP_OKAY = 0
RESP_SLVERR = 2
BURST_INCR = 1
MAX_BURST_BEATS = 256
PAGE_BYTES = 4096  # no burst crosses this boundary


def axi4_read(data_width: int, addr_width: int) -> wiring.Signature:
    """Read channels of an AXI4 manager; one ID, 0."""
    return wiring.Signature({
        "arid": Out(1), "araddr": Out(addr_width), "arlen": Out(8), "arsize": Out(3), "arburst": Out(2), "arvalid": Out(1), "arready": In(1),
        "rid": In(1), "rdata": In(data_width), "rresp": In(2), "rlast": In(1), "rvalid": In(1), "rready": Out(1),
    })  # fmt: skip


def axi4_write(data_width: int, addr_width: int) -> wiring.Signature:
    """Write channels of an AXI4 manager; one ID, 0, so that responses come in order."""
    return wiring.Signature({
        "awid": Out(1), "awaddr": Out(addr_width), "awlen": Out(8), "awsize": Out(3), "awburst": Out(2), "awvalid": Out(1), "awready": In(1),
        "wdata": Out(data_width), "wstrb": Out(data_width // 8), "wlast": Out(1), "wvalid": Out(1), "wready": In(1),
        "bid": In(1), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
    })  # fmt: skip


def axil(addr_width: int) -> wiring.Signature:
    """AXI4-Lite with 32-bit data."""
    return wiring.Signature({
        "awaddr": Out(addr_width), "awvalid": Out(1), "awready": In(1),
        "wdata": Out(32), "wstrb": Out(4), "wvalid": Out(1), "wready": In(1),
        "bresp": In(2), "bvalid": In(1), "bready": Out(1),
        "araddr": Out(addr_width), "arvalid": Out(1), "arready": In(1),
        "rdata": In(32), "rresp": In(2), "rvalid": In(1), "rready": Out(1),
    })  # fmt: skip


def burst_length(m: Module, addr: Value, beats: Value, beat_bytes: int) -> Signal:
    """Beats of the next burst from ``addr`` (aligned to a beat) when ``beats`` are left: not across a page, not above the longest burst."""
    page_beats = PAGE_BYTES // beat_bytes
    to_page = Signal(range(page_beats + 1))
    burst = Signal(range(MAX_BURST_BEATS + 1))
    m.d.comb += [to_page.eq(page_beats - addr[(beat_bytes - 1).bit_length() : (PAGE_BYTES - 1).bit_length()]), burst.eq(MAX_BURST_BEATS)]
    with m.If((beats <= to_page) & (beats < MAX_BURST_BEATS)):
        m.d.comb += burst.eq(beats)
    with m.Elif(to_page < MAX_BURST_BEATS):
        m.d.comb += burst.eq(to_page)
    return burst
