"""Scenarios on golden NICs: what they want to show does happen, before and beside RTL. Of random traffic one seed: RTL has the others."""

from __future__ import annotations

import asyncio

import pytest

from hdl.params import preset
from verif.cases import Run, all_cases
from verif.system.env import MEMORY_BYTES, System
from verif.system.golden_native import GoldenNative
from verif.system.scenarios import SCENARIOS

CASES = {case.name: case for case in all_cases() if case.testcase == "scenario" and case.name.partition(".")[2] in ("", "0")
         and SCENARIOS[case.parameters["scenario"]].__module__.startswith(("verif.system.directed_", "verif.system.bad_", "verif.system.random_"))}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_directed(tmp_path, name):
    case = CASES[name]
    preset_name = case.presets[0]
    params = preset(preset_name, trace=True, **case.build)
    s = System(None, Run(name, preset_name, 1, {"remote": False, **case.parameters}, tmp_path), GoldenNative(params, 1, MEMORY_BYTES))

    async def whole() -> None:
        await SCENARIOS[case.parameters["scenario"]](s)
        await s.finish()

    asyncio.run(whole())
    print(f"{name}: {s.clock} clocks, {s.lockstep.records} records")
