"""DMA engines against a byte-exact memory model with random stalls: any address, any length, never across 4 KiB (F-07, X-07, I-04)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from hdl.host.dma_read import DmaRead
from hdl.host.dma_write import DmaWrite
from hdl.params import preset

LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 44, 45, 255, 256, 257, 1024, 4095, 4096)


def cases(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Addresses and lengths: every alignment, many close to a page boundary."""
    out = []
    for i in range(count):
        page = rng.randrange(4) * 4096
        base = page + (4096 - rng.randrange(64) if rng.random() < 0.5 else rng.randrange(4096))
        out.append((base & ~7 | i % 8, LENGTHS[i % len(LENGTHS)] if rng.random() < 0.8 else rng.randint(1, 4096)))
    return out


async def read_memory(ctx: Any, axi: Any, memory: bytes, rng: random.Random, bad: set[int], log: list[str]) -> None:
    """An AXI read subordinate with random latency; addresses in ``bad`` (pages) answer SLVERR."""
    queue: list[tuple[int, int]] = []
    beat = 0
    while True:
        ctx.set(axi.arready, rng.random() < 0.6)
        if queue and not ctx.get(axi.rvalid) and rng.random() < 0.7:
            addr, beats = queue[0]
            at = addr + 8 * beat
            ctx.set(axi.rdata, int.from_bytes(memory[at : at + 8], "little"))
            ctx.set(axi.rresp, 2 if at >> 12 in bad else 0)
            ctx.set(axi.rvalid, 1)
            ctx.set(axi.rlast, beat == beats - 1)
        _, _, ar, r, addr, length = await ctx.tick().sample(axi.arvalid & axi.arready, axi.rvalid & axi.rready, axi.araddr, axi.arlen + 1)
        if ar:
            if addr % 8 or (addr % 4096) + 8 * length > 4096:
                log.append(f"burst of {length} beats at {addr:#x}")
            queue.append((addr, length))
        if r:
            ctx.set(axi.rvalid, 0)
            beat += 1
            if beat == queue[0][1]:
                queue.pop(0)
                beat = 0


@pytest.mark.parametrize("seed", range(2))
def test_read(seed: int) -> None:
    rng = random.Random(seed)
    memory = rng.randbytes(6 * 4096)
    todo = cases(rng, 40)
    dut = DmaRead(preset("tiny"))
    log: list[str] = []
    bad = {4}

    async def feed(ctx: Any) -> None:
        for addr, length in todo:
            ctx.set(dut.request.payload.addr, addr)
            ctx.set(dut.request.payload.length, length)
            ctx.set(dut.request.valid, 1)
            await ctx.tick().until(dut.request.ready)
            ctx.set(dut.request.valid, 0)
            if rng.random() < 0.5:
                await ctx.tick().repeat(rng.randrange(1, 20))

    async def memory_side(ctx: Any) -> None:
        await read_memory(ctx, dut.axi, memory, rng, bad, log)

    async def check(ctx: Any) -> None:
        for addr, length in todo:
            got = b""
            error = last = 0
            while not last:
                ctx.set(dut.payload.ready, rng.random() < 0.7)
                fields = [getattr(dut.payload.payload, f) for f in ("data", "last", "error")]
                _, _, ok, word, last_now, err = await ctx.tick().sample(dut.payload.ready & dut.payload.valid, *fields)
                if ok:
                    got += word.to_bytes(8, "little")
                    last, error = last_now, err
            assert len(got) == -(-length // 8) * 8, (seed, addr, length)
            assert got[length:] == bytes(len(got) - length)
            touched = {a >> 12 for a in (addr, addr + length - 1)}
            assert error == bool(touched & bad), (seed, hex(addr), length)
            if not error:
                assert got[:length] == memory[addr : addr + length], (seed, hex(addr), length)
        assert not log, log

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(feed, background=True)
    sim.add_testbench(memory_side, background=True)
    sim.add_testbench(check)
    sim.run()


@pytest.mark.parametrize("seed", range(2))
def test_write(seed: int) -> None:
    rng = random.Random(seed)
    memory = bytearray(rng.randbytes(6 * 4096))
    dut = DmaWrite(preset("tiny"))
    jobs = [(addr, length, rng.random() < 0.8, rng.randbytes(length)) for addr, length in cases(rng, 40)]
    jobs.insert(5, (0, 0, False, b""))
    jobs.insert(9, (64, 0, True, b""))
    want = bytearray(memory)
    writes = 0
    for addr, length, write, payload in jobs:
        if write and length:
            want[addr : addr + length] = payload
            writes += 1
    log: list[str] = []
    done: list[int] = []

    async def verdicts(ctx: Any) -> None:
        v = dut.verdict
        for addr, length, write, _ in jobs:
            for name, value in (("addr", addr), ("plen", length), ("write", int(write)), ("qp", addr & 1)):
                ctx.set(getattr(v.payload, name), value)
            ctx.set(v.valid, 1)
            await ctx.tick().until(v.ready)
            ctx.set(v.valid, 0)

    async def payloads(ctx: Any) -> None:
        s = dut.payload
        for _, length, _, payload in jobs:
            for at in range(0, length, 8):
                if rng.random() < 0.2:
                    await ctx.tick().repeat(rng.randrange(1, 5))
                ctx.set(s.payload.data, int.from_bytes(payload[at : at + 8], "little"))
                ctx.set(s.payload.last, at + 8 >= length)
                ctx.set(s.valid, 1)
                await ctx.tick().until(s.ready)
                ctx.set(s.valid, 0)

    async def subordinate(ctx: Any) -> None:
        axi = dut.axi
        bursts: list[tuple[int, int]] = []
        beats: list[list[int]] = []
        answers = 0
        while True:
            ctx.set(axi.awready, rng.random() < 0.5)
            ctx.set(axi.wready, rng.random() < 0.7)
            if answers and not ctx.get(axi.bvalid) and rng.random() < 0.3:
                ctx.set(axi.bvalid, 1)
            _, _, aw, w, b, addr, length, *beat = await ctx.tick().sample(
                axi.awvalid & axi.awready, axi.wvalid & axi.wready, axi.bvalid & axi.bready,
                axi.awaddr, axi.awlen + 1, axi.wdata, axi.wstrb, axi.wlast)  # fmt: skip
            if aw:
                if addr % 8 or (addr % 4096) + 8 * length > 4096:
                    log.append(f"burst of {length} beats at {addr:#x}")
                bursts.append((addr, length))
            if w:
                beats.append(beat)
            if b:
                ctx.set(axi.bvalid, 0)
                answers -= 1
            if bursts and len(beats) >= bursts[0][1]:
                at, count = bursts.pop(0)
                for i in range(count):
                    value, strobe, last = beats.pop(0)
                    if last != (i == count - 1):
                        log.append("wlast")
                    for lane in range(8):
                        if strobe >> lane & 1:
                            memory[at + 8 * i + lane] = value >> 8 * lane & 0xFF
                answers += 1

    async def check(ctx: Any) -> None:
        for _ in range(200_000):
            if ctx.get(dut.done) == writes:
                break
            await ctx.tick()
        await ctx.tick().repeat(10)
        done.append(ctx.get(dut.issued))

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    for process in (verdicts, payloads, subordinate):
        sim.add_testbench(process, background=True)
    sim.add_testbench(check)
    sim.run()
    assert done == [writes], f"seed {seed}: {done} of {writes} writes answered"
    assert not log, log
    assert memory == want, f"seed {seed}: memory differs"
