"""The bench of two NICs around the harness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hdl.host.axi import axi4_read
from hdl.params import Params, preset
from hdl.trace import TraceLayouts
from verif.bench import Bench

_HERE = Path(__file__).parent
_RECORD_BITS = 4096
CPP = tuple(_HERE / name for name in ("harness.cpp", "axi_memory.cpp", "fabric.cpp", "host.cpp"))


def _id_bits(params: Params) -> int:
    return int(axi4_read(params.data_width, params.addr_width).members["arid"].shape)


def clock_ns(params: Params) -> float:
    """Length of a clock such that a tick is 128 ns, as the wire's timestamps say."""
    return 128.0 / params.tick_div


def harness_bench(params: Params, **nic: Any) -> Bench:
    """Two instances of the NIC in the harness. ``nic``: what brings the module mrc_nic, `components` or `sources` of a Bench."""
    layouts = TraceLayouts(params)
    if max(layouts.req.size, layouts.rsp.size) > _RECORD_BITS:
        raise ValueError(f"a commit record has more than the {_RECORD_BITS} bits that harness.sv passes on")
    sources = (*nic.pop("sources", ()), _HERE / "harness.sv")
    defines = {f"PLANES_{n}": 1 for n in (2, 4, 8) if params.planes >= n} | ({"TRACE": 1} if params.trace else {})
    return Bench(
        name=f"system-{params.name}", top="mrc_harness", sources=sources, cpp=CPP, includes=(_HERE,), defines=defines,
        parameters={"PLANES": params.planes, "DW": params.data_width, "PW": params.port_width, "IDW": _id_bits(params), "AW": params.addr_width,
                    "REQ_BITS": layouts.req.size, "RSP_BITS": layouts.rsp.size, "CLOCK_NS": clock_ns(params)},
        cflags=("-std=gnu++20",), ldflags=("-rdynamic",), **nic,
    )  # fmt: skip


def system_bench(preset_name: str, **changes: Any) -> Bench:
    """Two real NICs of a preset, with the commit trace unless ``trace=False``; ``changes`` change sizes."""
    from hdl.nic import Nic  # the whole hardware: only loaded where it is built

    params = preset(preset_name, **{"trace": True, **changes})
    return harness_bench(params, components={"mrc_nic": lambda: Nic(params)})
