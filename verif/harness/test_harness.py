"""The harness itself: memories, fabric, hosts and the event stream, around a stand-in for the NIC."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdl.params import preset
from hdl.trace import TraceLayouts
from verif.harness.bench import harness_bench
from verif.harness.stream import events


def fake_bench():
    params = preset("tiny", trace=True)
    layouts = TraceLayouts(params)
    bench = harness_bench(params, sources=(Path(__file__).parent / "fake_nic.sv",))
    bench.defines.update(REQ_BITS=layouts.req.size, RSP_BITS=layouts.rsp.size)
    return bench


@pytest.mark.parametrize("testcase", ["moves_frames", "faults", "directed", "bus_rules", "speed"])
def test_harness(simulate, testcase):
    simulate(fake_bench(), "verif.harness.bench_harness", testcase)


def test_cut_stream():
    with pytest.raises(ValueError, match="cut off"):
        list(events(bytes(31)))
    with pytest.raises(ValueError, match="cut off"):
        list(events(bytes([0, 0, 0, 0, 9]) + bytes(27) + bytes(8)))
