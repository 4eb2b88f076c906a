"""The `simulate` fixture: block tests in verif/ describe a bench and name a cocotb module; this builds and runs it.

A test of a block is two files: `bench_x.py` with the @cocotb.test() functions, run inside the simulator, and
`test_x.py` for pytest:

    def test_parse(simulate):
        simulate(Bench.of(Parse(width=64), "parse"), "verif.wire.bench_parse")

WAVES=1 in the environment leaves a waveform in the run's folder, SEED= changes the base seed.
"""

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from sim import tools
from sim.build import RunSpec, build
from sim.results import Outcome
from verif.bench import Bench
from verif.cases import BASE_SEED, derive_seed


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Function `simulate(bench, module, testcase=None, seed=None, preset="", parameters={}, timeout=600)`.

    Builds the bench, runs the cocotb tests of the module (or the one named) and fails the pytest test with the end
    of the log if one failed. Inside, `verif.cases.this_run()` gives the seed and the parameters.
    """
    waves = os.environ.get("WAVES", "") not in ("", "0")
    count = 0

    def run(bench: Bench, module: str, testcase: str | None = None, *, seed: int | None = None, preset: str = "",
            parameters: dict[str, Any] | None = None, timeout: float = 600.0) -> Outcome:
        nonlocal count
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", request.node.nodeid.split("/")[-1].replace("::", "."))
        name += f".{count}" if count else ""
        count += 1
        base = int(os.environ.get("SEED") or BASE_SEED)
        spec = RunSpec(name, module, tools.BUILD / "run" / name, testcase,
                       derive_seed(name, base) if seed is None else seed, preset, parameters or {}, timeout)
        outcome = build(bench, waves).run(spec)
        if not outcome.passed:
            pytest.fail(f"{outcome.message}\n{outcome.log_tail()}\nrun folder: {outcome.out}\n"
                        f"waveform:   SEED={base} WAVES=1 python -m pytest '{request.node.nodeid}'", pytrace=False)
        return outcome

    return run
