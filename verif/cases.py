"""System test cases: the registry that `make sim` runs, and what a running case knows about itself.

A module that has cases calls `register(...)` when it is imported and is named in `CASE_MODULES`. Inside the
simulation the cocotb test calls `this_run()` to get its seed, its parameters and a place for its results.
"""

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASE_MODULES: list[str] = [
    "verif.system.basic",
    *(f"verif.system.directed_{name}" for name in ("sizes", "window", "order", "sacks", "nacks", "paths", "life")),
    *(f"verif.system.bad_{name}" for name in ("frames", "qp", "data", "host")),
    "verif.system.random_traffic",
    "verif.system.rates",
]
"""Modules that register cases when imported."""

BASE_SEED = 1
"""The seed that `make sim` uses when SEED is not given: a regression is the same for everybody."""

RUN_VARIABLE = "MRC_RUN"
"""Environment variable through which the runner tells the simulation where its run file is."""


@dataclass(frozen=True)
class Case:
    """One system test: which bench, which cocotb test in it, with what parameters."""

    name: str
    """Unique; what TEST= takes. Letters, digits, underscore, dot and hyphen."""
    module: str
    """Module with the cocotb test, e.g. "verif.system.bench_write"."""
    testcase: str
    """Name of the @cocotb.test() function in it."""
    bench: str
    """"module:function"; called with the preset's name and `build` it returns the `verif.bench.Bench`."""
    presets: tuple[str, ...] = ("tiny",)
    """Presets that the case supports; it runs in the first unless PRESET= chooses another of them."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the test itself reads (traffic, faults ...). Must survive JSON."""
    build: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the bench function: different values mean different executables."""
    seed: int | None = None
    """A fixed seed, for a case that replays one known failure; else derived from the name and the base seed."""
    timeout: float = 600.0
    """Wall seconds after which the simulation is killed: nothing may hang for ever."""
    group: str = "regression"
    """"regression" runs in make sim and make test; "bench" only in make bench or when named by TEST=."""


_registry: dict[str, Case] = {}


def register(*cases: Case) -> None:
    """Adds cases to the regression. A second case of the same name is a mistake, not an override."""
    for case in cases:
        if not case.name or not all(c.isalnum() or c in "_.-" for c in case.name):
            raise ValueError(f"case name {case.name!r}: only letters, digits, underscore, dot and hyphen")
        if _registry.get(case.name, case) != case:
            raise ValueError(f"two cases are called {case.name!r}")
        _registry[case.name] = case


def all_cases() -> list[Case]:
    """Every registered case in the order of registration, after importing `CASE_MODULES`."""
    for module in CASE_MODULES:
        importlib.import_module(module)
    return list(_registry.values())


def derive_seed(name: str, base: int) -> int:
    """The seed of a case. From its name, so that adding a case changes no other case's stimulus."""
    return int.from_bytes(hashlib.sha256(f"{base}/{name}".encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Run:
    """A running case, as seen from inside the simulation."""

    name: str
    preset: str
    seed: int
    parameters: Mapping[str, Any]
    out: Path
    """Folder for everything this run leaves behind: pcap files, traces, logs."""
    waves: bool = False

    def report(self, **values: Any) -> None:
        """Adds values to the run's results. Known to the report table: `clocks`, `frames`, `records` (commit
        records compared). Everything else (fault counters ...) is listed with the case. May be called repeatedly.
        """
        path = self.out / "result.json"
        results = json.loads(path.read_text()) if path.exists() else {}
        results.update(values)
        path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def this_run() -> Run:
    """The run that this process simulates. Also says the seed in the log, which is what a replay needs."""
    path = os.environ.get(RUN_VARIABLE)
    if path is None:
        raise RuntimeError(f"{RUN_VARIABLE} is not set: start the case through make sim or the simulate fixture")
    data = json.loads(Path(path).read_text())
    run = Run(data["name"], data["preset"], data["seed"], data["parameters"], Path(path).parent, data["waves"])
    print(f"case {run.name}: preset {run.preset}, seed {run.seed}", flush=True)
    return run
