"""The NIC: the engine with payload movement, host interface and one pair of AXI streams per network plane."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.engine import Engine
from hdl.host.axi import axi4_read, axi4_write, axil
from hdl.host.completions import Completions
from hdl.host.dma_read import DmaRead
from hdl.host.dma_write import DmaWrite
from hdl.host.registers import Registers
from hdl.params import Params
from hdl.trace import TraceLayouts
from hdl.wire.egress import Egress
from hdl.wire.ingress import Ingress

AXIL_ADDR_BITS = 16


def _flat(prefix: str, signature: wiring.Signature) -> dict[str, wiring.Member]:
    """Members of an AMBA bundle as single ports ``prefix_member``, with the names that other people's models expect."""
    return {f"{prefix}_{name}": member for name, member in signature.members.items()}


def _stream_ports(name: str, width: int, flow: type) -> dict[str, wiring.Member]:
    back = In if flow is Out else Out
    return {f"{name}_tdata": flow(width), f"{name}_tkeep": flow(width // 8), f"{name}_tvalid": flow(1), f"{name}_tready": back(1),
            f"{name}_tlast": flow(1), f"{name}_tuser": flow(1)}  # fmt: skip


class Nic(wiring.Component):
    """One MRC NIC.

    Ports: ``s_axil_*`` registers (:mod:`hdl.host.regmap`), ``m_axi_*`` host memory (AXI4, ``data_width`` bits, ID 0), per plane n ``m_axis_tx<n>_*`` and
    ``s_axis_rx<n>_*`` (Ethernet frames without FCS; tuser on the last beat of a received frame = bad frame), ``link_up`` (bit n: the link of port n), ``irq``,
    ``tick``, and with ``params.trace`` the commit trace ``trace_req_*`` and ``trace_rsp_*`` (:mod:`hdl.trace`). One clock ``clk``, synchronous reset ``rst``.
    """

    def __init__(self, params: Params) -> None:
        self.p = params
        ports: dict[str, wiring.Member] = {
            **_flat("s_axil", axil(AXIL_ADDR_BITS).flip()),
            **_flat("m_axi", axi4_write(params.data_width, params.addr_width)),
            **_flat("m_axi", axi4_read(params.data_width, params.addr_width)),
        }
        for n in range(params.planes):
            ports |= _stream_ports(f"m_axis_tx{n}", params.port_width, Out) | _stream_ports(f"s_axis_rx{n}", params.port_width, In)
        ports |= {"link_up": In(params.planes), "irq": Out(1), "tick": Out(32)}
        if params.trace:
            layouts = TraceLayouts(params)
            ports |= {"trace_req_valid": Out(1), "trace_req_data": Out(layouts.req.size),
                      "trace_rsp_valid": Out(1), "trace_rsp_data": Out(layouts.rsp.size)}  # fmt: skip
        super().__init__(ports)

    def _connect_bus(self, m: Module, prefix: str, bus: object, signature: wiring.Signature) -> None:
        """Joins the flat ports ``prefix_*`` and the bundle ``bus``, whose manager side ``signature`` describes."""
        for name, member in signature.members.items():
            port, inner = getattr(self, f"{prefix}_{name}"), getattr(bus, name)
            m.d.comb += port.eq(inner) if member.flow == Out else inner.eq(port)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.p

        divider = Signal(range(max(2, p.tick_div)))
        with m.If(divider == p.tick_div - 1):
            m.d.sync += [divider.eq(0), self.tick.eq(self.tick + 1)]
        with m.Else():
            m.d.sync += divider.eq(divider + 1)

        m.submodules.engine = engine = Engine(p)
        m.submodules.ingress = ingress = Ingress(p)
        m.submodules.egress = egress = Egress(p)
        m.submodules.dma_read = dma_read = DmaRead(p)
        m.submodules.dma_write = dma_write = DmaWrite(p)
        m.submodules.completions = completions = Completions(p)
        m.submodules.registers = registers = Registers(p, drop_sources=p.planes + 3)

        # --- host ------------------------------------------------------------------------------------------------------------------------
        # The register file is the subordinate: its bundle is the flipped signature, so directions seen from here are those of the manager, reversed.
        for name, member in axil(AXIL_ADDR_BITS).members.items():
            port, inner = getattr(self, f"s_axil_{name}"), getattr(registers.bus, name)
            m.d.comb += inner.eq(port) if member.flow == Out else port.eq(inner)
        self._connect_bus(m, "m_axi", dma_read.axi, axi4_read(p.data_width, p.addr_width))
        self._connect_bus(m, "m_axi", dma_write.axi, axi4_write(p.data_width, p.addr_width))
        wiring.connect(m, registers.cmd, engine.cmd)
        wiring.connect(m, engine.cmd_status, registers.status)
        m.d.comb += [
            completions.reserve.eq(registers.reserve),
            registers.cq_room.eq(completions.room),
            registers.cq_head.eq(completions.head),
            registers.cq_valid.eq(completions.head_valid),
            registers.cq_count.eq(completions.count),
            completions.pop.eq(registers.cq_pop),
            registers.port_up.eq(engine.port_up),
            registers.tick.eq(self.tick),
            self.irq.eq(registers.irq),
        ]
        wiring.connect(m, engine.completion_req, completions.from_requestor)
        wiring.connect(m, engine.completion_rsp, completions.from_responder)

        # --- receive ---------------------------------------------------------------------------------------------------------------------
        m.d.comb += [engine.tick.eq(self.tick), engine.link_up.eq(self.link_up)]
        wiring.connect(m, ingress.rx_req, engine.rx_req)
        wiring.connect(m, ingress.rx_rsp, engine.rx_rsp)
        wiring.connect(m, engine.verdict, dma_write.verdict)
        wiring.connect(m, ingress.payload, dma_write.payload)
        wiring.connect(m, dma_write.error, engine.wr_error)
        # A QP whose payload write failed may not announce success for anything behind that write; SET_QP gives it a fresh start.
        failed = Signal(p.qps)
        with m.If(engine.cfg_wr.valid):
            m.d.sync += failed.bit_select(engine.cfg_wr.qp, 1).eq(0)
        with m.If(dma_write.error.valid):
            m.d.sync += failed.bit_select(dma_write.error.payload.qp, 1).eq(1)
        m.d.comb += [
            completions.write_issued.eq(dma_write.issued),
            completions.write_done.eq(dma_write.done),
            completions.write_pending.eq(engine.verdict.valid),
            completions.failed.eq(failed),
        ]

        # --- send ------------------------------------------------------------------------------------------------------------------------
        # A data descriptor goes to the builder and, with its payload's address, to the DMA; either waits for both.
        tx = engine.tx_req
        needs_read = tx.payload.plen != 0
        both = Signal()
        m.d.comb += [
            both.eq(egress.tx_req.ready & (dma_read.request.ready | ~needs_read)),
            egress.tx_req.payload.eq(tx.payload),
            dma_read.request.payload.addr.eq(tx.payload.laddr),
            dma_read.request.payload.length.eq(tx.payload.plen),
            egress.tx_req.valid.eq(tx.valid & (dma_read.request.ready | ~needs_read)),
            dma_read.request.valid.eq(tx.valid & needs_read & egress.tx_req.ready),
            tx.ready.eq(both),
        ]
        wiring.connect(m, dma_read.payload, egress.payload)
        wiring.connect(m, egress.depart, engine.depart)
        # An answer with a write stamp is taken when no verdict issued before it is still on its way to the DMA.
        held = engine.tx_rsp.payload.wr_stamp & engine.verdict.valid
        m.d.comb += [
            egress.tx_rsp.payload.eq(engine.tx_rsp.payload),
            egress.tx_rsp.valid.eq(engine.tx_rsp.valid & ~held),
            engine.tx_rsp.ready.eq(egress.tx_rsp.ready & ~held),
            egress.wr_issued.eq(dma_write.issued),
            egress.wr_done.eq(dma_write.done),
            egress.failed.eq(failed),
            egress.tick.eq(self.tick),
            egress.up.eq(engine.port_up),
            engine.room_req.eq(egress.room_req),
            engine.room_rsp.eq(egress.room_rsp),
        ]
        for block in (ingress, egress):
            m.d.comb += [
                block.cfg_wr.valid.eq(engine.cfg_wr.valid),
                block.cfg_wr.qp.eq(engine.cfg_wr.qp),
                block.cfg_wr.data.eq(engine.cfg_wr.data),
                block.global_config.eq(engine.global_config),
            ]

        # --- planes ----------------------------------------------------------------------------------------------------------------------
        for n in range(p.planes):
            self._plane(m, n, ingress, egress, registers)
        for pulse, source in zip(registers.drops, [*ingress.drop, engine.drop_req, engine.drop_rsp, egress.drop], strict=True):
            m.d.comb += pulse.eq(source)

        if p.trace:
            m.d.comb += [
                self.trace_req_valid.eq(engine.trace_req_valid),
                self.trace_req_data.eq(engine.trace_req_data),
                self.trace_rsp_valid.eq(engine.trace_rsp_valid),
                self.trace_rsp_data.eq(engine.trace_rsp_data),
            ]
        return m

    def _plane(self, m: Module, n: int, ingress: Ingress, egress: Egress, registers: Registers) -> None:
        """Streams and counters of plane ``n``."""

        def port(name: str) -> Value:
            value: Value = getattr(self, name)
            return value

        rx, tx = ingress.rx[n], egress.tx[n]
        m.d.comb += [
            rx.payload.data.eq(port(f"s_axis_rx{n}_tdata")),
            rx.payload.keep.eq(port(f"s_axis_rx{n}_tkeep")),
            rx.payload.last.eq(port(f"s_axis_rx{n}_tlast")),
            rx.payload.bad.eq(port(f"s_axis_rx{n}_tuser")),
            rx.valid.eq(port(f"s_axis_rx{n}_tvalid")),
            port(f"s_axis_rx{n}_tready").eq(rx.ready),
            port(f"m_axis_tx{n}_tdata").eq(tx.payload.data),
            port(f"m_axis_tx{n}_tkeep").eq(tx.payload.keep),
            port(f"m_axis_tx{n}_tlast").eq(tx.payload.last),
            port(f"m_axis_tx{n}_tuser").eq(tx.payload.bad),
            port(f"m_axis_tx{n}_tvalid").eq(tx.valid),
            tx.ready.eq(port(f"m_axis_tx{n}_tready")),
            registers.tx_frame[n].eq(egress.tx_frame[n]),
            registers.tx_bytes[n].eq(egress.tx_bytes[n]),
            registers.tx_dropped[n].eq(egress.tx_dropped[n]),
            registers.rx_frame[n].eq(ingress.rx_frame[n]),
            registers.rx_bytes[n].eq(ingress.rx_bytes[n]),
        ]
