"""``make demo``: trains on the chosen backend, shows it live, compares the weights bit for bit with a training in memory.

BACKEND=rtl (two NICs in RTL, lockstep on) | model (two golden endpoints) | memory; SEED= chooses data split, initial weights and faults.
Exit code 0: same bits and accuracy reached. 1: not. 2: the request is not in order.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

from rich.console import Console

from sim import tools
from sim.demo.backends import BACKENDS
from sim.demo.plots import write_plots
from sim.demo.training import MemoryExchange, Settings, train
from sim.demo.view import View

WANTED_ACCURACY = 0.95


def main() -> int:
    """Runs the demonstration."""
    backend = os.environ.get("BACKEND") or "rtl"
    seed_text = os.environ.get("SEED") or "1"
    if backend not in BACKENDS:
        print(f"make demo: unknown BACKEND {backend!r}: choose one of {', '.join(BACKENDS)}", file=sys.stderr)
        return 2
    if not seed_text.isdigit():
        print(f"make demo: SEED must be a whole number, not {seed_text!r}", file=sys.stderr)
        return 2
    settings = Settings(seed=int(seed_text))
    folder = tools.BUILD / "demo"
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    start = time.monotonic()
    reference = train(MemoryExchange(), settings)
    console.print(f"reference in memory: accuracy {reference.accuracy:.2%}, weights {_digest(reference.weights)}")
    try:
        with View(console, f"{backend}, seed {settings.seed}") as view:
            weights = BACKENDS[backend](settings, folder, view.show)
    except tools.ToolError as problem:
        print(f"make demo: {problem}", file=sys.stderr)
        return 1
    accuracy = view.events[-1].accuracy
    for path in write_plots(view.events, folder):
        console.print(f"plot: {path.relative_to(tools.ROOT)}")
    same = weights == reference.weights
    console.print(f"{backend}: accuracy {accuracy:.2%} on held-out digits (wanted: {WANTED_ACCURACY:.0%}), weights {_digest(weights)}: "
                  f"{'the same bits as in memory' if same else 'DIFFERENT from those in memory'}; {time.monotonic() - start:.0f} s")  # fmt: skip
    return 0 if same and accuracy >= WANTED_ACCURACY else 1


def _digest(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
