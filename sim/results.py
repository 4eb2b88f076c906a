"""What came out of one simulation: cocotb's results file plus what the test reported itself."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

KNOWN = ("clocks", "frames", "records")


@dataclass(frozen=True)
class Outcome:
    """How one run went."""

    passed: bool
    message: str
    """Why it failed: one line for tables. Empty when it passed."""
    tests: int
    seconds: float
    """Wall time inside the simulator."""
    out: Path
    reported: dict[str, Any] = field(default_factory=dict)
    """Values that the test gave to `Run.report`."""

    def number(self, name: str) -> float | None:
        """A reported number, or None if the test did not report it."""
        value = self.reported.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    def rate(self, name: str) -> float | None:
        """A reported number per second of wall time."""
        value = self.number(name)
        return value / self.seconds if value is not None and self.seconds > 0 else None

    def log_tail(self, lines: int = 40) -> str:
        """The end of the simulation's log."""
        log = self.out / "sim.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def read_outcome(out: Path, crash: str) -> Outcome:
    """Reads the folder of a run. `crash` is what the runner had to say about the process itself, if anything.

    A run without a readable results file, or with no test in it, has failed: silence is not success.
    """
    reported = _reported(out / "result.json")
    results = out / "results.xml"
    try:
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Outcome(False, crash or _last_error(out / "sim.log"), 0, 0.0, out, reported)
    seconds = sum(float(case.get("time") or 0.0) for case in cases)
    ran = [case for case in cases if case.find("skipped") is None]
    message = ""
    for case in ran:
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            text = bad.get("error_msg") or bad.get("message") or (bad.text or "").strip() or "failed"
            message = f"{case.get('name')}: {text.strip().splitlines()[0]}"
            break
    if not message:
        if not ran:
            message = crash or "no cocotb test of that name ran"
        elif crash:
            message = crash
    return Outcome(not message, message, len(ran), seconds, out, reported)


def _last_error(log: Path) -> str:
    """The last line of the log that speaks of an error, for a simulation that ended without results."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [line.strip() for line in lines if "rror" in line]
    return "the simulation left no results" + (f": {errors[-1]}" if errors else "")


def _reported(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError:
        return {}
    return values if isinstance(values, dict) else {}
