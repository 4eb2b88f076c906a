"""The training run in the terminal: loss curve, accuracy, packets per path, faults of the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sim.demo.events import Event

BLOCKS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], width: int, height: int = 4) -> list[str]:
    """``values`` as ``height`` lines of block characters, ``width`` columns; the newest value is at the right end."""
    if not values:
        return [""] * height
    columns = min(width, len(values))
    per = len(values) / columns
    means = []
    for i in range(columns):
        part = values[int(i * per) : max(int(i * per) + 1, int((i + 1) * per))]
        means.append(sum(part) / len(part))
    top = max(means) or 1.0
    rows = []
    for row in reversed(range(height)):
        levels = (max(0, min(8, round((value / top * height - row) * 8))) for value in means)
        rows.append("".join(BLOCKS[level] for level in levels))
    return rows


class View:
    """Live display on a terminal; in a log file a line every tenth of the run."""

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title
        self.events: list[Event] = []
        self.notes: list[str] = []
        self._live = Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, event: Event) -> None:
        """Takes the state after a step."""
        self.events.append(event)
        if event.note:
            self.notes.append(f"step {event.step}: {event.note}")
        if self._live:
            self._live.update(self.render())
        elif event.note or event.step % max(1, event.steps // 10) == 0:
            faults = sum(event.faults.values())
            tail = f"  {event.note}" if event.note else ""
            self.console.print(f"step {event.step:>4}/{event.steps}  loss {event.loss:.4f}  accuracy {event.accuracy:.1%}  faults {faults}{tail}")

    def render(self) -> RenderableType:
        """The whole picture as it stands."""
        event = self.events[-1]
        width = max(20, min(100, self.console.width - 8))
        losses = [e.loss for e in self.events]
        head = Text.assemble((f"{self.title}  ", "bold"), f"step {event.step}/{event.steps}  loss {event.loss:.4f}  ",
                             (f"accuracy {event.accuracy:.1%}", "green" if event.accuracy >= 0.95 else "yellow"))  # fmt: skip
        if event.time_us:
            head.append(f"  wire time {event.time_us / 1000:.2f} ms")
        parts: list[RenderableType] = [head, ProgressBar(total=event.steps, completed=event.step, width=width)]
        parts.append(Panel("\n".join(curve(losses, width)), title="loss", width=width + 4))
        if event.paths:
            parts.append(Columns([self._paths(event), self._faults(event)], padding=(0, 4)))
        parts.extend(Text(note, style="red") for note in self.notes[-4:])
        return Group(*parts)

    @staticmethod
    def _paths(event: Event) -> Table:
        table = Table(title="packets per path", box=None)
        table.add_column("path")
        table.add_column("packets", justify="right")
        table.add_column("")
        most = max(event.paths.values(), default=1) or 1
        for path, count in sorted(event.paths.items()):
            table.add_row(path, str(count), "█" * round(24 * count / most))
        return table

    @staticmethod
    def _faults(event: Event) -> Table:
        table = Table(title="faults of the fabric", box=None)
        table.add_column("kind")
        table.add_column("count", justify="right")
        for kind, count in sorted(event.faults.items()):
            table.add_row(kind, str(count))
        return table
