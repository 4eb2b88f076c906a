"""The cocotb test that runs a scenario."""

from __future__ import annotations

from typing import Any

import cocotb

from verif.cases import all_cases, this_run
from verif.system.env import CheckError, System
from verif.system.scenarios import SCENARIOS

__all__ = ["scenario"]

all_cases()  # imports every module with scenarios


@cocotb.test()
async def scenario(dut: Any) -> None:
    """The scenario that the case names, then the checks of the end."""
    run = this_run()
    system = System(dut, run)
    try:
        await SCENARIOS[run.parameters["scenario"]](system)
        await system.finish()
    except CheckError:
        system.first_difference()
        raise
    finally:
        system.close()
