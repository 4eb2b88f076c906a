"""The system regression: `make sim`.

Builds each executable the chosen cases need, runs them two at a time, shows what is going on, and leaves the report
in build/report. A failing case is run once more with waves, so that the waveform is there when somebody looks.
"""

import os
import shutil
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.console import Console

from sim import report, tools
from sim.build import RunSpec, Simulation, build
from sim.choose import Chosen, Request, Unknown, choose
from sim.progress import Progress
from sim.results import Outcome
from verif.bench import Bench
from verif.cases import Case, all_cases


@dataclass(frozen=True)
class Finished:
    """A case that has run."""

    chosen: Chosen
    outcome: Outcome
    waveform: Path | None = None


def bench_of(chosen: Chosen) -> Bench:
    """Calls the case's bench function."""
    module, _, function = chosen.case.bench.partition(":")
    bench = getattr(import_module(module), function)(chosen.preset, **chosen.case.build)
    if not isinstance(bench, Bench):
        raise tools.ToolError(f"{chosen.case.bench} returned {type(bench).__name__}, not a Bench")
    return bench


class Regression:
    """One call of `make sim`."""

    def __init__(self, chosen: list[Chosen], *, waves: bool, folder: Path, jobs: int, console: Console,
                 rerun: bool = True) -> None:
        self.chosen = chosen
        self.waves = waves
        self.folder = folder
        self.jobs = jobs
        self.console = console
        self.rerun = rerun
        self._built: dict[tuple[object, ...], Simulation] = {}

    def run(self) -> list[Finished]:
        """Everything chosen, in the order given; raises ToolError when something does not build."""
        with Progress(self.console, len(self.chosen)) as progress:
            for item in self.chosen:
                # Builds come first, one after the other: make uses the cores by itself.
                progress.building(item.case.name)
                self._simulation(item, self.waves)
            finished = self._run_all(progress)
            return [self._with_waves(item, progress) for item in finished]

    def _run_all(self, progress: Progress) -> list[Finished]:
        results: dict[int, Finished] = {}
        with ThreadPoolExecutor(self.jobs) as pool:
            pending: dict[Future[Finished], int] = {}
            queue = list(enumerate(self.chosen))[::-1]
            while queue or pending:
                while queue and len(pending) < self.jobs:
                    index, item = queue.pop()
                    progress.started(item.case.name)
                    pending[pool.submit(self._run_one, item)] = index
                done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    index = pending.pop(future)
                    results[index] = future.result()
                    progress.finished(results[index].chosen.case.name, results[index].outcome)
                progress.tick()
        return [results[index] for index in sorted(results)]

    def _run_one(self, item: Chosen) -> Finished:
        outcome = self._simulation(item, self.waves).run(self._spec(item, self.folder / item.case.name))
        return Finished(item, outcome, _waveform(outcome.out))

    def _with_waves(self, finished: Finished, progress: Progress) -> Finished:
        """Runs a failed case again with waves. What it reports is the first run; the second only adds the picture."""
        if finished.outcome.passed or self.waves or not self.rerun:
            return finished
        item = finished.chosen
        progress.building(f"{item.case.name} with waves")
        try:
            again = self._simulation(item, True).run(self._spec(item, self.folder / f"{item.case.name}.waves"))
        except tools.ToolError as problem:
            self.console.print(f"no waveform of {item.case.name}: {problem}", markup=False)
            return finished
        if again.passed:
            self.console.print(f"{item.case.name} passed when run again with waves: look for missing reset or a race",
                               markup=False)
        return Finished(item, finished.outcome, _waveform(again.out))

    def _simulation(self, item: Chosen, waves: bool) -> Simulation:
        key = (item.case.bench, item.preset, repr(sorted(item.case.build.items())), waves)
        if key not in self._built:
            self._built[key] = build(bench_of(item), waves)
        return self._built[key]

    @staticmethod
    def _spec(item: Chosen, out: Path) -> RunSpec:
        return RunSpec(item.case.name, item.case.module, out, item.case.testcase, item.seed, item.preset,
                       item.case.parameters, item.case.timeout)


def _waveform(out: Path) -> Path | None:
    return next(iter(sorted(out.glob("waves.*"))), None)


def regress(cases: list[Case], request: Request, folder: Path | None = None,
            console: Console | None = None) -> list[Finished]:
    """Runs what is asked for and writes the report. Raises Unknown and ToolError with a line for the user."""
    folder = (folder or tools.BUILD / "report").absolute()
    # Into a log file rich would write 80 columns and cut the numbers off.
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    chosen = choose(cases, request)
    jobs = max(1, min(int(os.environ.get("JOBS") or 2), len(chosen)))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.monotonic()
    rerun = os.environ.get("RERUN", "1") != "0"  # mutation runs want the verdict only
    finished = Regression(chosen, waves=request.waves, folder=folder, jobs=jobs, console=console, rerun=rerun).run()
    report.write(finished, folder, time.monotonic() - start, console)
    return finished


def main() -> int:
    """Exit code 0: all passed. 1: a case failed. 2: the request or the machine is not in order."""
    try:
        finished = regress(all_cases(), Request.from_environment())
    except (Unknown, tools.ToolError) as problem:
        print(f"make sim: {problem}", file=sys.stderr)
        return 2
    failed = sum(not item.outcome.passed for item in finished)
    print(f"{len(finished) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
