"""`make bench`: the cases of group "bench": packets per clock, clocks and frames per second of the simulation.

A case reports what it measures as `figures`: {name: {"value", "unit", "how"}}. All of them are printed and kept in
build/bench.json, with the speed of the simulation beside them, which alone depends on the machine.
"""

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sim import tools
from sim.choose import Request, Unknown
from sim.regress import Finished, regress
from verif.cases import all_cases


def figures(finished: Sequence[Finished]) -> dict[str, dict[str, object]]:
    """What the cases report, and their speed."""
    found: dict[str, dict[str, object]] = {}
    for item in finished:
        reported = item.outcome.reported
        found |= reported.get("figures", {})
        for name in ("clocks", "frames"):
            if (value := reported.get(f"{name}_per_second")) is not None:
                found[f"simulated_{name}_per_second_{item.chosen.case.name}"] = {
                    "value": value, "unit": f"{name}/s", "how": "two NICs in RTL, lockstep on; depends on the machine"}
    return found


def main() -> int:
    """Exit codes as `make sim`."""
    try:
        finished = regress(all_cases(), Request.from_environment(group="bench"), tools.BUILD / "bench")
    except (Unknown, tools.ToolError) as problem:
        print(f"make bench: {problem}", file=sys.stderr)
        return 2
    found = figures(finished)
    path = tools.BUILD / "bench.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    table = Table("value", "unit", "figure")
    for name, entry in sorted(found.items()):
        table.add_row(str(entry["value"]), str(entry["unit"]), name)
    Console().print(table)
    print(f"figures: {path.relative_to(tools.ROOT)}")
    return 1 if any(not item.outcome.passed for item in finished) else 0


if __name__ == "__main__":
    sys.exit(main())
