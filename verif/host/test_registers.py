"""The register file: mailbox, completion window, counters, bad addresses (F-06, S-03, O-05)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from hdl.host import regmap
from hdl.host.completions import Completions
from hdl.host.registers import Registers
from hdl.params import preset
from model.spec import Command, Drop, PostStatus, WcStatus

PARAMS = preset("tiny", msg_slots=2, rq_entries=2)  # a completion queue of 8
REG = {name: r.address for name, r in regmap.BY_NAME.items()}


class Bench(wiring.Component):
    """Register file and completion queue together, as in the NIC."""

    def __init__(self) -> None:
        self.registers = Registers(PARAMS, drop_sources=3)
        self.completions = Completions(PARAMS)
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.registers = r = self.registers
        m.submodules.completions = c = self.completions
        m.d.comb += [
            c.reserve.eq(r.reserve), r.cq_room.eq(c.room), r.cq_head.eq(c.head), r.cq_valid.eq(c.head_valid),
            r.cq_count.eq(c.count), c.pop.eq(r.cq_pop),
        ]  # fmt: skip
        return m


class Bus:
    """AXI4-Lite manager on the testbench side."""

    def __init__(self, ctx: Any, bus: Any) -> None:
        self.ctx, self.bus = ctx, bus

    async def write(self, address: int, value: int, *, data_first: bool = False, strobe: int = 0xF) -> int:
        ctx, bus = self.ctx, self.bus
        channels = [
            (bus.awvalid, bus.awready, [(bus.awaddr, address)]),
            (bus.wvalid, bus.wready, [(bus.wdata, value), (bus.wstrb, strobe)]),
        ]
        for valid, ready, payload in reversed(channels) if data_first else channels:
            for signal, v in payload:
                ctx.set(signal, v)
            ctx.set(valid, 1)
            await ctx.tick().until(ready)
            ctx.set(valid, 0)
        ctx.set(bus.bready, 1)
        resp = await ctx.tick().sample(bus.bresp).until(bus.bvalid)
        ctx.set(bus.bready, 0)
        return int(resp[0])

    async def read(self, address: int) -> tuple[int, int]:
        ctx, bus = self.ctx, self.bus
        ctx.set(bus.araddr, address)
        ctx.set(bus.arvalid, 1)
        await ctx.tick().until(bus.arready)
        ctx.set(bus.arvalid, 0)
        await ctx.tick().repeat(3)  # the answer stays until it is taken
        ctx.set(bus.rready, 1)
        data, resp = await ctx.tick().sample(bus.rdata, bus.rresp).until(bus.rvalid)
        ctx.set(bus.rready, 0)
        return int(data), int(resp)

    async def command(self, op: int, arg: int = 0) -> None:
        await self.write(REG["CMD_ARG"], arg)
        await self.write(REG["CMD"], op)


def run(testbench: Callable[[Any, Bench, Bus], Coroutine[Any, Any, None]]) -> None:
    bench = Bench()
    sim = Simulator(bench)
    sim.add_clock(1e-6)

    async def process(ctx: Any) -> None:
        await testbench(ctx, bench, Bus(ctx, bench.registers.bus))

    sim.add_testbench(process)
    sim.run()


async def answer(ctx: Any, bench: Bench, status: int) -> Any:
    """Takes the waiting command and answers it."""
    r = bench.registers
    assert ctx.get(r.cmd.valid)
    op, qp, index, data = (ctx.get(getattr(r.cmd.payload, f)) for f in ("op", "qp", "index", "data"))
    ctx.set(r.cmd.ready, 1)
    await ctx.tick()
    ctx.set(r.cmd.ready, 0)
    ctx.set(r.status.payload.status, status)
    ctx.set(r.status.valid, 1)
    await ctx.tick().until(r.status.ready)
    ctx.set(r.status.valid, 0)
    return op, qp, index, data


def test_identity_and_bad_addresses() -> None:
    async def body(ctx: Any, bench: Bench, bus: Bus) -> None:
        assert await bus.read(REG["ID"]) == (regmap.ID_VALUE, 0)
        assert await bus.read(REG["VERSION"]) == (regmap.VERSION_VALUE, 0)
        assert await bus.read(REG["PARAMS0"]) == (2 | 2 << 16 | 7 << 24, 0)
        for address in (0x020, 0xFFC, 0x1000, 0xFFFC):
            assert await bus.read(address) == (0, 2), hex(address)
            assert await bus.write(address, 1) == 2, hex(address)
        assert await bus.write(REG["ID"], 0) == 2  # read-only
        assert await bus.read(REG["CMD"]) == (0, 0)
        for i in range(regmap.DATA_WORDS):
            assert await bus.write(REG[f"DATA{i}"], 0x01020304 * (i + 1), data_first=bool(i & 1)) == 0
        for i in range(regmap.DATA_WORDS):
            assert await bus.read(REG[f"DATA{i}"]) == (0x01020304 * (i + 1) & 0xFFFFFFFF, 0)
        await bus.write(REG["DATA0"], 0xAABBCCDD, strobe=0b0100)
        assert await bus.read(REG["DATA0"]) == (0x01BB0304, 0)

    run(body)


def test_mailbox() -> None:
    async def body(ctx: Any, bench: Bench, bus: Bus) -> None:
        for i in range(regmap.DATA_WORDS):
            await bus.write(REG[f"DATA{i}"], i + 1)
        await bus.command(Command.SET_EV, 0x0005_0001)
        assert (await bus.read(REG["CMD_STATUS"]))[0] >> 31 == 1
        await bus.command(Command.NOP)  # refused: one is busy
        assert await bus.read(REG["MAILBOX_ERRORS"]) == (1, 0)
        op, qp, index, data = await answer(ctx, bench, PostStatus.BAD_STATE)
        assert (op, qp, index) == (Command.SET_EV, 1, 5)
        assert data == sum((i + 1) << 32 * i for i in range(regmap.DATA_WORDS))
        assert await bus.read(REG["CMD_STATUS"]) == (PostStatus.BAD_STATE, 0)

    run(body)


def test_completion_places_are_reserved() -> None:
    """Posts are FULL once every place of the queue is promised, and a pop gives one back; a refused post takes none."""

    async def body(ctx: Any, bench: Bench, bus: Bus) -> None:
        depth = PARAMS.cq_depth
        await bus.command(Command.POST)
        await answer(ctx, bench, PostStatus.FULL)
        for _ in range(depth):
            await bus.command(Command.POST_RECV)
            await answer(ctx, bench, PostStatus.OK)
        await bus.command(Command.POST)
        assert await bus.read(REG["CMD_STATUS"]) == (PostStatus.FULL, 0)
        assert not ctx.get(bench.registers.cmd.valid)
        c = bench.completions
        for i in range(depth):
            source = c.from_requestor if i & 1 else c.from_responder
            for name, value in (("wr_id", 0x1_0000_0000 * i + i), ("length", i), ("imm", ~i & 0xFFFFFFFF), ("qp", i & 1), ("recv", i & 1 ^ 1)):
                ctx.set(getattr(source.payload, name), value)
            ctx.set(source.valid, 1)
            await ctx.tick().until(source.ready)
            ctx.set(source.valid, 0)
        await ctx.tick().repeat(4)
        await bus.write(REG["IRQ_ENABLE"], 1)
        await ctx.tick()
        assert ctx.get(bench.registers.irq)
        assert await bus.read(REG["CQ_COUNT"]) == (depth, 0)
        for i in range(depth):
            assert await bus.read(REG["CQ_INFO"]) == (1 << 31 | (i & 1 ^ 1) << 30 | (i & 1), 0)
            assert await bus.read(REG["CQ_WR_ID_LO"]) == (i, 0)
            assert await bus.read(REG["CQ_WR_ID_HI"]) == (i, 0)
            assert await bus.read(REG["CQ_LENGTH"]) == (i, 0)
            assert await bus.read(REG["CQ_IMM"]) == (~i & 0xFFFFFFFF, 0)
            await bus.write(REG["CQ_POP"], 1)
        assert await bus.read(REG["CQ_INFO"]) == (0, 0)
        await bus.write(REG["CQ_POP"], 1)  # empty: nothing happens
        assert not ctx.get(bench.registers.irq)
        for _ in range(depth):  # every place is free again, and not one more
            await bus.command(Command.POST)
            await answer(ctx, bench, PostStatus.OK)
        await bus.command(Command.POST)
        assert not ctx.get(bench.registers.cmd.valid)

    run(body)


def test_receive_completion_waits_for_its_writes() -> None:
    async def body(ctx: Any, bench: Bench, bus: Bus) -> None:
        c = bench.completions
        ctx.set(c.write_pending, 1)
        ctx.set(c.from_responder.payload.recv, 1)
        ctx.set(c.from_responder.valid, 1)
        await ctx.tick().repeat(5)
        assert not ctx.get(c.from_responder.ready)
        ctx.set(c.write_issued, 0x10003 & 0xFFFF)  # the counters wrap
        ctx.set(c.write_done, 0xFFFE)
        ctx.set(c.write_pending, 0)
        await ctx.tick().until(c.from_responder.ready)
        ctx.set(c.from_responder.valid, 0)
        ctx.set(c.write_issued, 9)  # later writes do not matter
        for done in (0xFFFF, 0, 2):
            ctx.set(c.write_done, done)
            await ctx.tick().repeat(5)
            assert not ctx.get(c.head_valid), done
        ctx.set(c.failed, 1)
        ctx.set(c.write_done, 3)
        await ctx.tick().repeat(4)
        assert ctx.get(c.head_valid)
        assert ctx.get(c.head.status) == WcStatus.LOCAL_MEMORY

    run(body)


def test_counters() -> None:
    """Several sources may count one cause in one clock; every cause has its own register (F-05)."""

    async def body(ctx: Any, bench: Bench, bus: Bus) -> None:
        r = bench.registers
        for cause in Drop:
            for clock in range(cause + 1):
                for source in range(3):
                    ctx.set(r.drops[source].valid, source == 0 or clock == 0)
                    ctx.set(r.drops[source].cause, cause)
                await ctx.tick()
        for source in range(3):
            ctx.set(r.drops[source].valid, 0)
        ctx.set(r.rx_bytes[1], 1000)
        ctx.set(r.tx_frame[0], 1)
        await ctx.tick().repeat(3)
        ctx.set(r.rx_bytes[1], 0)
        ctx.set(r.tx_frame[0], 0)
        await ctx.tick().repeat(2)
        for cause in Drop:
            assert await bus.read(regmap.COUNTER_BASE + 4 * cause) == (cause + 3, 0), cause
        assert await bus.read(regmap.plane_counter(1, "rx_bytes")) == (3000, 0)
        assert await bus.read(regmap.plane_counter(0, "tx_frames")) == (3, 0)
        assert await bus.read(regmap.plane_counter(1, "tx_frames")) == (0, 0)

    run(body)


def test_map_has_no_overlap() -> None:
    addresses = [r.address for r in regmap.REGISTERS]
    assert len(set(addresses)) == len(addresses)
    assert max(addresses) < regmap.PLANE_COUNTER_BASE
