"""Inside the simulator: every result of the shift canary equals Python's integers. See test_canary.py."""

import random

import cocotb
from cocotb.triggers import Timer

from verif.cases import this_run

MASK = (1 << 128) - 1


@cocotb.test()
async def shifts_agree(dut):
    """Random a, b, c and the corners that the faulty folding of two shifts into one gets wrong."""
    run = this_run()
    source = random.Random(run.seed)
    corners = [0, 1, 2, 63, 64, 65, 126, 127]
    triples = [(a, b, c) for a in (1, MASK, MASK ^ 1, 1 << 127) for b in corners for c in corners]
    triples += [(source.getrandbits(128), source.getrandbits(7), source.getrandbits(7))
                for _ in range(run.parameters["triples"])]
    for a, b, c in triples:
        dut.a.value, dut.b.value, dut.c.value = a, b, c
        await Timer(1, "ns")
        expected = ((a << b) & MASK) << c & MASK
        assert int(dut.left.value) == expected, f"({a:#x} << {b}) << {c} = {int(dut.left.value):#x}, not {expected:#x}"
        expected = (a >> b) >> c
        assert int(dut.right.value) == expected, f"({a:#x} >> {b}) >> {c} = {int(dut.right.value):#x}"
    run.report(triples=len(triples))
