"""Do requirements and tests know each other? docs/spec.md numbers the rules, tests name the numbers.

Prints every requirement that no test names, every number in a test that the specification does not have, and every
number defined twice; exits non-zero if there are any.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sim.tools import ROOT

REQUIREMENT = re.compile(r"\bMRC-REQ-\d{3}\b")
# A line defines a requirement when its number comes first, behind list, table, heading or emphasis marks.
DEFINITION = re.compile(r"^[\s|*#>\-`\[]*(MRC-REQ-\d{3})\b")
PACKAGES = ("model", "hdl", "verif", "sim", "boards")


@dataclass(frozen=True)
class Trace:
    """What the comparison found."""

    defined: dict[str, int]
    """Number -> how often it is defined."""
    named: dict[str, list[str]]
    """Number -> test files that name it."""

    @property
    def untested(self) -> list[str]:
        return sorted(set(self.defined) - set(self.named))

    @property
    def unknown(self) -> list[str]:
        return sorted(set(self.named) - set(self.defined))

    @property
    def doubled(self) -> list[str]:
        return sorted(name for name, count in self.defined.items() if count > 1)

    def problems(self) -> Iterator[str]:
        """One line for each thing that is wrong."""
        for name in self.untested:
            yield f"{name}: no test names it"
        for name in self.unknown:
            yield f"{name}: not in docs/spec.md, but named in {', '.join(self.named[name])}"
        for name in self.doubled:
            yield f"{name}: defined {self.defined[name]} times"


def test_files(root: Path) -> Iterable[Path]:
    """Everything in verif/, and test_*.py wherever it lies."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if package == "verif" or path.name.startswith("test_"):
                yield path


def trace(root: Path) -> Trace:
    """Compares a tree's docs/spec.md with its tests."""
    defined: Counter[str] = Counter()
    for line in (root / "docs" / "spec.md").read_text().splitlines():
        if found := DEFINITION.match(line):
            defined[found[1]] += 1
    named: dict[str, list[str]] = {}
    for path in test_files(root):
        for number in sorted(set(REQUIREMENT.findall(path.read_text()))):
            named.setdefault(number, []).append(str(path.relative_to(root)))
    return Trace(dict(defined), named)


def check(root: Path) -> int:
    """Prints the result; 0 if requirements and tests match."""
    if not (root / "docs" / "spec.md").exists():
        print("requirements: docs/spec.md not found", file=sys.stderr)
        return 1
    found = trace(root)
    problems = list(found.problems())
    if not found.defined:
        problems.append("docs/spec.md defines no requirement (a line that begins with MRC-REQ and three digits)")
    for line in problems:
        print(f"requirements: {line}")
    print(f"requirements: {len(found.defined)} numbered, {len(found.untested)} without a test, "
          f"{len(found.unknown)} unknown")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(check(ROOT))
