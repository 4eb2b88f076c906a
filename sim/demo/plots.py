"""Plots that remain of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from sim.demo.events import Event  # noqa: E402


def write_plots(events: Sequence[Event], folder: Path) -> list[Path]:
    """Writes training.png and, where a fabric was there, paths.png into ``folder``; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for path in (_training(events, folder), _paths(events, folder)) if path is not None]


def _notes(axes: Axes, events: Sequence[Event]) -> None:
    for event in events:
        if event.note:
            axes.axvline(event.step, color="tab:red", linestyle=":", linewidth=1)
            axes.annotate(event.note, (event.step, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right", fontsize=7)


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
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 7), layout="constrained", sharex=True)
    steps = [event.step for event in events]
    for name in sorted(events[-1].paths):
        counts = [event.paths.get(name, 0) for event in events]
        upper.plot(steps, [b - a for a, b in zip([0, *counts], counts, strict=False)], label=name, linewidth=0.9)
    upper.set(ylabel="data packets in the step", title="Packets per path")
    upper.legend(fontsize=7, ncol=4)
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
