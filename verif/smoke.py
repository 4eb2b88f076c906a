"""The smallest bench there is: a counter. The tests of the tools build it, and it shows how a bench is written."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from verif.bench import Bench


class Counter(wiring.Component):
    """Counts the clocks in which `enable` is high. Latency: one clock."""

    enable: In(1)
    count: Out(16)

    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += self.count.eq(self.count + 1)
        return m


def counter(preset: str) -> Counter:
    """The component for `sim.verilog`; it is the same for every preset."""
    return Counter()


def counter_bench(preset: str) -> Bench:
    """The bench function of the counter; it is the same for every preset."""
    return Bench.of(Counter, "smoke")
