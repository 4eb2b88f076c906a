"""`make test`: everything a developer runs before a commit, in one command with one last line.

Requirement check, then pytest (model and block tests, tests of the tools) with two workers, then the system
regression. All three run even if an earlier one fails: one run tells everything that is wrong.
"""

import os
import subprocess
import sys
import time
from xml.etree import ElementTree

from sim import requirements_check, tools
from sim.choose import Request, Unknown, choose
from sim.regress import regress
from verif.cases import all_cases


def requirement_counts() -> tuple[int, int]:
    """The requirement check counts as one test."""
    return (0, 1) if requirements_check.check(tools.ROOT) else (1, 0)


def pytest_counts() -> tuple[int, int]:
    """Runs pytest; returns (passed, failed). A skipped test counts as failed: it has proved nothing."""
    results = tools.BUILD / "pytest.xml"
    results.unlink(missing_ok=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    jobs = os.environ.get("JOBS") or "2"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", jobs, f"--junitxml={results}"],
                          cwd=tools.ROOT, check=False)
    try:
        suites = list(ElementTree.parse(results).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return 0, 1
    total = sum(int(suite.get("tests", 0)) for suite in suites)
    bad = sum(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors", "skipped"))
    # Exit codes 2 and up mean that pytest itself did not get through, whatever the file says.
    return total - bad, max(bad, 1 if done.returncode else 0)


def system_counts() -> tuple[int, int]:
    """Runs the system regression; returns (passed, failed)."""
    try:
        finished = regress(all_cases(), Request.from_environment())
    except (Unknown, tools.ToolError) as problem:
        print(f"system regression: {problem}", file=sys.stderr)
        return 0, 1
    failed = sum(not item.outcome.passed for item in finished)
    return len(finished) - failed, failed


def main() -> int:
    """0 only if everything passed."""
    try:
        choose(all_cases(), Request.from_environment())
    except Unknown as problem:  # said at once, not after minutes of other tests
        print(f"make test: {problem}", file=sys.stderr)
        return 2
    passed = failed = 0
    for title, run in (("requirements", requirement_counts),
                       ("pytest", pytest_counts), ("system", system_counts)):
        print(f"== {title}", flush=True)
        start = time.monotonic()
        good, bad = run()
        passed, failed = passed + good, failed + bad
        print(f"== {title}: {good} passed, {bad} failed in {time.monotonic() - start:.0f} s\n", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
