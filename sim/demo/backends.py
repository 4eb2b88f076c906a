"""Where the gradients travel: in memory, between two golden endpoints, or between two NICs in RTL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sim import tools
from sim.build import RunSpec, build
from sim.demo.events import Event, EventTail
from sim.demo.training import MemoryExchange, Progress, Settings, train
from sim.results import Outcome

Watch = Callable[[Event], None]
Backend = Callable[[Settings, Path, Watch], bytes]
"""(settings, folder for what remains, viewer) -> final weights."""

EVENTS_FILE = "events.jsonl"
WEIGHTS_FILE = "weights.bin"
TIMEOUT_S = 1200.0


def memory(settings: Settings, folder: Path, watch: Watch) -> bytes:
    """No network at all."""

    def show(progress: Progress) -> None:
        watch(Event(progress.step, progress.steps, progress.loss, progress.accuracy))

    return train(MemoryExchange(), settings, show).weights


def model(settings: Settings, folder: Path, watch: Watch) -> bytes:
    """Two golden endpoints over the golden model's lossy link."""
    from sim.demo.model_backend import ModelExchange

    exchange = ModelExchange(settings)

    def show(progress: Progress) -> None:
        watch(exchange.event(progress))

    return train(exchange, settings, show).weights


def rtl(settings: Settings, folder: Path, watch: Watch) -> bytes:
    """Two NICs in RTL in lockstep with the golden model; the training itself runs inside the simulation's Python."""
    from verif.harness.bench import system_bench

    simulation = build(system_bench("board"), False)
    out = folder.absolute() / "rtl"
    outcome: list[Outcome] = []
    spec = RunSpec("demo", "sim.demo.bench_train", out, "train_over_rtl", settings.seed, "board", {"steps": settings.steps, "seed": settings.seed}, TIMEOUT_S)
    runner = threading.Thread(target=lambda: outcome.append(simulation.run(spec)), daemon=True)
    runner.start()
    tail = EventTail(out / EVENTS_FILE)
    while runner.is_alive():
        runner.join(0.2)
        for event in tail.new():
            watch(event)
    if not outcome:
        raise tools.ToolError("the simulation could not be run")
    if not outcome[0].passed:
        raise tools.ToolError(f"the simulation failed: {outcome[0].message}")
    return (out / WEIGHTS_FILE).read_bytes()


BACKENDS: dict[str, Backend] = {"rtl": rtl, "model": model, "memory": memory}
