"""What a training run tells its viewer after every step: one JSON line, so that the simulation may be another process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """State after one training step."""

    step: int
    steps: int
    loss: float
    accuracy: float
    time_us: float = 0.0
    """Time on the simulated wire; 0 where there is none."""
    paths: Mapping[str, int] = field(default_factory=dict)
    """Data packets sent so far per path: "A 0.3" is NIC A, plane 0, EV 3."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Faults that the fabric made so far, by kind."""
    note: str = ""
    """Something that happened in this step: a path died, came back."""


class EventLog:
    """Writes events to a file, one line each, at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def write(self, event: Event) -> None:
        """Appends one event."""
        self._file.write(json.dumps(asdict(event)) + "\n")


class EventTail:
    """Reads a file of events while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def new(self) -> Iterator[Event]:
        """Events that are complete and have not been read before; none while the file does not exist."""
        if not self.path.exists():
            return
        with self.path.open() as file:
            file.seek(self._at)
            while (line := file.readline()).endswith("\n"):
                self._at = file.tell()
                values: dict[str, Any] = json.loads(line)
                yield Event(**values)
