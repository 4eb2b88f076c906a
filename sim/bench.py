"""`make bench`: the cases of group "bench": packets per clock, clocks and frames per second of the simulation.

A case reports what it measures through `Run.report`; values without a column of their own are printed below.
"""

import sys

from sim import report, tools
from sim.choose import Request, Unknown
from sim.regress import regress
from verif.cases import all_cases


def main() -> int:
    """Exit codes as `make sim`."""
    try:
        finished = regress(all_cases(), Request.from_environment(group="bench"), tools.BUILD / "bench")
    except (Unknown, tools.ToolError) as problem:
        print(f"make bench: {problem}", file=sys.stderr)
        return 2
    for item in finished:
        if text := report.extra(item):
            print(f"{item.chosen.case.name}: {text}")
    return 1 if any(not item.outcome.passed for item in finished) else 0


if __name__ == "__main__":
    sys.exit(main())
