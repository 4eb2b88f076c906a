"""Inside the simulator: the counter counts; and a test that fails when it is told to, for the tests of the tools."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, Timer

from verif.cases import this_run


@cocotb.test()
async def counts(dut):
    """Enabled for a number of clocks the counter shows that number, plus a wrong expectation if asked for one."""
    run = this_run()
    clocks = run.parameters.get("clocks", 100)
    dut.rst.value, dut.enable.value = 1, 0
    Clock(dut.clk, 10, "ns").start()
    await ClockCycles(dut.clk, 2)
    await FallingEdge(dut.clk)
    dut.rst.value, dut.enable.value = 0, 1
    await ClockCycles(dut.clk, clocks)
    await FallingEdge(dut.clk)
    run.report(clocks=clocks, frames=clocks // 10, records=clocks, drops=run.seed % 7)
    assert int(dut.count.value) == clocks + run.parameters.get("off_by", 0)


@cocotb.test()
async def hangs(dut):
    """Never ends by itself: the runner has to end it."""
    this_run()
    while True:
        await Timer(1, "us")
