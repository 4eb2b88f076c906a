"""The AXI4-Lite register file: command mailbox, completion window, counters (map: :mod:`hdl.host.regmap`)."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.host import regmap
from hdl.host.axi import RESP_OKAY, RESP_SLVERR, axil
from hdl.layouts import Layouts
from hdl.params import Params
from model.spec import Command, Drop, PostStatus

ADDR_BITS = 12  # of the 16-bit address; above them SLVERR


def drop_pulse() -> data.StructLayout:
    """One counted cause in this clock, if ``valid``."""
    return data.StructLayout({"valid": 1, "cause": 8})


class Registers(wiring.Component):
    """AXI4-Lite subordinate, one access at a time, every access answered within a few clocks.

    A command leaves on ``cmd``; its status comes back on ``status`` and clears the busy bit. POST and POST_RECV
    are answered FULL here while ``cq_room`` is 0, and pulse ``reserve`` when the owner accepted them, so that every
    accepted request has a place in the completion queue.
    """

    def __init__(self, params: Params, *, drop_sources: int) -> None:
        self.p = params
        lay = Layouts(params)
        planes = params.planes
        super().__init__({
            "bus": In(axil(16)),
            "cmd": Out(stream.Signature(lay.cmd)), "status": In(stream.Signature(lay.cmd_status)),
            "cq_room": In(1), "reserve": Out(1),
            "cq_head": In(lay.completion), "cq_valid": In(1), "cq_count": In(range(params.cq_depth + 2)), "cq_pop": Out(1),
            "port_up": In(planes), "tick": In(32), "irq": Out(1),
            "drops": In(drop_pulse()).array(drop_sources),
            "tx_frame": In(1).array(planes), "rx_frame": In(1).array(planes), "tx_dropped": In(1).array(planes),
            "tx_bytes": In(16).array(planes), "rx_bytes": In(16).array(planes),
        })  # fmt: skip

    def _counters(self, m: Module) -> dict[int, Value]:
        """All counters by address. 32 bits, wrapping; several sources may count the same cause in one clock."""
        out: dict[int, Value] = {}
        for cause in Drop:
            counter = Signal(32, name=f"cnt_{cause.name.lower()}")
            hits = [pulse.valid & (pulse.cause == cause) for pulse in self.drops]
            total = Signal(range(len(hits) + 1), name=f"inc_{cause.name.lower()}")
            m.d.sync += [total.eq(sum(hits[1:], hits[0])), counter.eq(counter + total)]
            out[regmap.COUNTER_BASE + 4 * cause] = counter
        for plane in range(self.p.planes):
            steps = {"tx_frames": self.tx_frame, "rx_frames": self.rx_frame, "tx_dropped": self.tx_dropped,
                     "rx_bytes": self.rx_bytes, "tx_bytes": self.tx_bytes}  # fmt: skip
            for name in regmap.PLANE_COUNTERS:
                counter = Signal(32, name=f"{name}{plane}")
                m.d.sync += counter.eq(counter + steps[name][plane])
                out[regmap.plane_counter(plane, name)] = counter
        return out

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p, bus, reg = self.p, self.bus, {name: r.address for name, r in regmap.BY_NAME.items()}

        # --- write channels: address and data may come in any order -------------------------------------------------------------------
        waddr = Signal(16)
        wdata = Signal(32)
        wstrb = Signal(4)
        have_addr, have_data, act = Signal(), Signal(), Signal()
        m.d.comb += [bus.awready.eq(~have_addr & ~bus.bvalid), bus.wready.eq(~have_data & ~bus.bvalid)]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [waddr.eq(bus.awaddr), have_addr.eq(1)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [wdata.eq(bus.wdata), wstrb.eq(bus.wstrb), have_data.eq(1)]
        m.d.comb += act.eq(have_addr & have_data)
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(act):
            m.d.sync += [have_addr.eq(0), have_data.eq(0), bus.bvalid.eq(1), bus.bresp.eq(RESP_SLVERR)]
            for r in regmap.REGISTERS:
                if r.access != "ro":
                    with m.If(waddr[2:] == r.address >> 2):
                        m.d.sync += bus.bresp.eq(RESP_OKAY)

        words = Array(Signal(32, name=f"data{i}") for i in range(regmap.DATA_WORDS))
        arg = Signal(32)
        irq_enable = Signal()

        def merged(old: Value) -> Value:
            return Cat(Mux(wstrb[i], wdata.word_select(i, 8), old.word_select(i, 8)) for i in range(4))

        for i in range(regmap.DATA_WORDS):
            with m.If(act & (waddr[2:] == reg[f"DATA{i}"] >> 2)):
                m.d.sync += words[i].eq(merged(words[i]))
        with m.If(act & (waddr[2:] == reg["CMD_ARG"] >> 2)):
            m.d.sync += arg.eq(merged(arg))
        with m.If(act & (waddr[2:] == reg["IRQ_ENABLE"] >> 2) & wstrb[0]):
            m.d.sync += irq_enable.eq(wdata[0])
        m.d.comb += self.cq_pop.eq(act & (waddr[2:] == reg["CQ_POP"] >> 2))
        m.d.sync += self.irq.eq(irq_enable & self.cq_valid)

        # --- mailbox -------------------------------------------------------------------------------------------------------------------
        busy = Signal()
        status = Signal(8)
        errors = Signal(32)
        posting = Signal()
        cmd = self.cmd
        with m.If(cmd.ready):
            m.d.sync += cmd.valid.eq(0)
        with m.If(act & (waddr[2:] == reg["CMD"] >> 2)):
            with m.If(busy):
                m.d.sync += errors.eq(errors + 1)
            with m.Else():
                op = wdata[:8]
                post = (op == Command.POST) | (op == Command.POST_RECV)
                with m.If(post & ~self.cq_room):
                    m.d.sync += status.eq(PostStatus.FULL)
                with m.Else():
                    m.d.sync += [
                        busy.eq(1),
                        posting.eq(post),
                        cmd.valid.eq(1),
                        cmd.payload.op.eq(op),
                        cmd.payload.qp.eq(arg[:16]),
                        cmd.payload.index.eq(arg[16:]),
                        cmd.payload.data.eq(Cat(*words)),
                    ]
        m.d.comb += self.status.ready.eq(busy)
        with m.If(self.status.valid & busy):
            m.d.sync += [busy.eq(0), status.eq(self.status.payload.status)]
            m.d.comb += self.reserve.eq(posting & (self.status.payload.status == PostStatus.OK))

        # --- read channel ----------------------------------------------------------------------------------------------------------------
        head = self.cq_head
        values: dict[int, Value] = {
            reg["ID"]: Const(regmap.ID_VALUE, 32),
            reg["VERSION"]: Const(regmap.VERSION_VALUE, 32),
            reg["PARAMS0"]: Const(p.qps | p.planes << 16 | (p.window.bit_length() - 1) << 24, 32),
            reg["PARAMS1"]: Const(p.evs | p.msg_slots << 16, 32),
            reg["PORT_STATUS"]: self.port_up,
            reg["TICK"]: self.tick,
            reg["IRQ_ENABLE"]: irq_enable,
            reg["MAILBOX_ERRORS"]: errors,
            **{reg[f"DATA{i}"]: words[i] for i in range(regmap.DATA_WORDS)},
            reg["CMD_ARG"]: arg,
            reg["CMD_STATUS"]: Cat(status, Const(0, 23), busy),
            reg["CQ_COUNT"]: self.cq_count,
            reg["CQ_INFO"]: Mux(self.cq_valid, Cat(head.qp, Const(0, 16 - p.qp_bits), head.status, Const(0, 6), head.recv, Const(1, 1)), 0),
            reg["CQ_WR_ID_LO"]: head.wr_id[:32],
            reg["CQ_WR_ID_HI"]: head.wr_id[32:],
            reg["CQ_LENGTH"]: head.length,
            reg["CQ_IMM"]: head.imm,
            **self._counters(m),
        }
        raddr = Signal(16)
        reading = Signal()
        m.d.comb += bus.arready.eq(~reading & ~bus.rvalid)
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [raddr.eq(bus.araddr), reading.eq(1)]
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(reading):
            m.d.sync += [reading.eq(0), bus.rvalid.eq(1)]
            with m.If(raddr[ADDR_BITS:] != 0):
                m.d.sync += [bus.rdata.eq(0), bus.rresp.eq(RESP_SLVERR)]
            with m.Else():
                with m.Switch(raddr[2:ADDR_BITS]):
                    for address, value in values.items():
                        with m.Case(address >> 2):
                            m.d.sync += [bus.rdata.eq(value), bus.rresp.eq(RESP_OKAY)]
                    for r in regmap.REGISTERS:
                        if r.address not in values:  # write-only: reads 0
                            with m.Case(r.address >> 2):
                                m.d.sync += [bus.rdata.eq(0), bus.rresp.eq(RESP_OKAY)]
                    with m.Default():
                        m.d.sync += [bus.rdata.eq(0), bus.rresp.eq(RESP_SLVERR)]
        return m
