"""Plots that remain of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from sim.demo.events import Event  # noqa: E402

WINDOW = 4
"""Steps that a column of the packet map sums up."""


def write_plots(events: Sequence[Event], folder: Path) -> list[Path]:
    """Writes training.png and, where a fabric was there, paths.png into ``folder``; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for path in (_training(events, folder), _paths(events, folder)) if path is not None]


def _notes(axes: Axes, events: Sequence[Event]) -> None:
    for event in events:
        if event.note:
            axes.axvline(event.step, color="tab:red", linestyle=":", linewidth=1)
            axes.annotate(event.note, (event.step, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right", fontsize=7,
                          bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1})  # fmt: skip


def _training(events: Sequence[Event], folder: Path) -> Path:
    figure, left = plt.subplots(figsize=(8, 4.5), layout="constrained")
    steps = [event.step for event in events]
    left.plot(steps, [event.loss for event in events], color="tab:blue")
    left.set(xlabel="step", ylabel="loss", title="Two ranks, gradients as RDMA Writes over a lossy fabric")
    right = left.twinx()
    right.plot(steps, [100 * event.accuracy for event in events], color="tab:green")
    right.axhline(95, color="tab:green", linestyle="--", linewidth=0.7)
    right.set_ylabel("accuracy on held-out digits, %")
    _notes(left, events)
    path = folder / "training.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _paths(events: Sequence[Event], folder: Path) -> Path | None:
    if not events or not events[-1].paths:
        return None
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 9), height_ratios=(3, 2), layout="constrained", sharex=True)
    steps = [event.step for event in events]
    names = sorted(events[-1].paths)
    # Sums over a few steps: in one step a path carries one to three packets, which shows nothing but the rotation.
    edges = [0, *steps[WINDOW - 1 :: WINDOW]]
    edges += [steps[-1]] if edges[-1] < steps[-1] else []
    at = {0: dict.fromkeys(names, 0)} | {event.step: dict(event.paths) for event in events}
    rows = [[at[high].get(name, 0) - at[low].get(name, 0) for low, high in pairwise(edges)] for name in names]
    mesh = upper.pcolormesh(edges, range(len(names) + 1), rows, cmap="viridis", vmin=0)
    figure.colorbar(mesh, ax=upper, label=f"data packets in {WINDOW} steps")
    upper.set_yticks([i + 0.5 for i in range(len(names))], names, fontsize=6)
    upper.invert_yaxis()
    upper.set(ylabel="NIC, plane.EV", title="Packets per path")
    _notes(upper, events)
    for kind in sorted(events[-1].faults):
        lower.plot(steps, [event.faults.get(kind, 0) for event in events], label=kind)
    lower.set(xlabel="step", ylabel="faults so far", title="What the fabric did")
    if events[-1].faults:
        lower.legend(fontsize=7, ncol=4)
    path = folder / "paths.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
