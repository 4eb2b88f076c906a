"""The live line of a regression: which cases run, for how long, how many are done and how many failed."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sim.results import Outcome


class Progress:
    """On a terminal one line that changes in place; in a log file one line for each case that ends."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.done = 0
        self.failed = 0
        self._activity = ""
        self._running: dict[str, float] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def building(self, what: str) -> None:
        """An executable is being built (or found)."""
        if not self._live and self._activity != "building":
            self.console.print("building simulations ...")
        self._activity = "building"
        self._show(f"building for {what}")

    def started(self, name: str) -> None:
        """A case begins."""
        self._activity = ""
        self._running[name] = time.monotonic()
        self.tick()

    def finished(self, name: str, outcome: Outcome) -> None:
        """A case has ended; failures stay on the screen at once."""
        self._running.pop(name, None)
        self.done += 1
        self.failed += not outcome.passed
        if not outcome.passed or not self._live:
            state = "pass" if outcome.passed else f"FAIL  {outcome.message}"
            self.console.print(f"[{self.done:>3}/{self.total}] {name:<40} {outcome.seconds:7.1f} s  {state}",
                               markup=False)
        self.tick()

    def tick(self) -> None:
        """Shows the present state."""
        now = time.monotonic()
        running = ", ".join(f"{name} {now - since:.0f} s" for name, since in self._running.items())
        self._show(f"{self.done}/{self.total} done, {self.failed} failed; running: {running or '-'}")

    def _show(self, line: str) -> None:
        if self._live:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
