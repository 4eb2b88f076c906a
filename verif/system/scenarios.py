"""The registry of scenarios: plain coroutines over a System, each a case of `make sim`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from verif.cases import Case, register
from verif.system.env import System

Scenario = Callable[[System], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(presets: tuple[str, ...] = ("tiny", "board"), build: dict[str, Any] | None = None, seeds: int = 1, group: str = "regression",
             timeout: float = 300.0, name: str | None = None, **parameters: Any) -> Callable[[Scenario], Scenario]:  # fmt: skip
    """Registers a coroutine as ``seeds`` cases. ``build``: changed sizes of the NICs; ``parameters``: see System, and ``s.run.parameters``."""

    def add(function: Scenario) -> Scenario:
        base = name or function.__name__
        if base in SCENARIOS:
            raise ValueError(f"two scenarios are called {base!r}")
        SCENARIOS[base] = function
        for number in range(seeds):
            register(Case(
                name=base if seeds == 1 else f"{base}.{number}", module="verif.system.bench_system", testcase="scenario",
                bench="verif.harness.bench:system_bench", presets=presets, build=build or {}, group=group, timeout=timeout,
                parameters={**parameters, "scenario": base, "build": build or {}},
            ))  # fmt: skip
        return function

    return add
