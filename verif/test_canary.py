"""A canary for the simulator itself: Verilator 5.048 to 5.050 silently compile `(a << b) << c` into `a << (b + c)` of
too narrow a sum (upstream issue 7955). Bitmaps of packets live on such shifts, so a simulator that gets them wrong
must stop the test run before anything else is believed."""

from pathlib import Path

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from verif.bench import Bench


class Shifts(wiring.Component):
    """Two shifts in a row of a 128-bit value, both directions, combinational."""

    a: In(128)
    b: In(7)
    c: In(7)
    left: Out(128)
    right: Out(128)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.left.eq(((self.a << self.b)[:128] << self.c)[:128]),
                     self.right.eq((self.a >> self.b) >> self.c)]
        return m


def test_double_shift_verilog(simulate):
    """The construct itself, hand-written."""
    bench = Bench(name="canary", top="canary", sources=(Path(__file__).with_name("canary.sv"),))
    outcome = simulate(bench, "verif.bench_canary", parameters={"triples": 4000})
    assert outcome.reported["triples"] > 4000


def test_double_shift_amaranth(simulate):
    """The same through the whole tool chain: Amaranth, Yosys, Verilator, cocotb."""
    outcome = simulate(Bench.of(Shifts(), "shifts"), "verif.bench_canary", parameters={"triples": 4000})
    assert outcome.reported["triples"] > 4000
