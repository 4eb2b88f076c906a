"""The regression runner itself: a good case, a failing one, a hanging one, and questions for what does not exist."""

import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from sim import tools
from sim.choose import Request, Unknown, choose
from sim.regress import Finished, regress
from verif.cases import Case, derive_seed


def case(name: str, testcase: str = "counts", timeout: float = 120.0, **parameters: int) -> Case:
    return Case(name, "verif.bench_smoke", testcase, "verif.smoke:counter_bench", ("tiny", "board"), parameters,
                timeout=timeout)


def run(folder: Path, *cases: Case, **request: str) -> tuple[list[Finished], str]:
    screen = io.StringIO()
    finished = regress(list(cases), Request(**request), folder, Console(file=screen, width=200))  # type: ignore[arg-type]
    return finished, screen.getvalue()


def test_failure_leaves_everything_needed_to_replay(tmp_path: Path) -> None:
    """One case fails on purpose: result files hold the replay line, and the rerun with waves leaves a waveform."""
    folder = tmp_path / "report"
    finished, screen = run(folder, case("good", clocks=200), case("bad", off_by=1), preset="board")
    assert [item.outcome.passed for item in finished] == [True, False]
    replay = "make sim TEST=bad SEED=1 PRESET=board"
    for file in ("junit.xml", "summary.md", "summary.html", "results.json"):
        assert replay in (folder / file).read_text(), file
    assert replay in screen
    good, bad = json.loads((folder / "results.json").read_text())
    assert good["passed"] and good["reported"]["clocks"] == 200 and good["seed"] == derive_seed("good", 1)
    assert bad["message"].startswith("counts: ")
    assert (folder / bad["waveform"]).stat().st_size > 0
    suite = ElementTree.parse(folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_hanging_case_is_ended_and_failed(tmp_path: Path) -> None:
    """Nothing waits for ever."""
    finished, screen = run(tmp_path / "report", case("hang", "hangs", timeout=3.0))
    assert not finished[0].outcome.passed
    assert "killed after 3 s" in screen


def test_missing_test_function_fails(tmp_path: Path) -> None:
    """A case whose function does not exist must not count as passed."""
    finished, _ = run(tmp_path / "report", case("typo", "cuonts"))
    assert not finished[0].outcome.passed


def test_seed_depends_on_name_and_base_only() -> None:
    cases = [case("a"), case("b")]
    first = choose(cases, Request(seed=7))
    alone = choose(cases, Request(test="b", seed=7))
    assert first[1].seed == alone[0].seed != first[0].seed
    assert alone[0].seed != choose(cases, Request(test="b", seed=8))[0].seed


@pytest.mark.parametrize("request_, words", [
    (Request(test="goood"), "unknown test 'goood'; did you mean good?"),
    (Request(preset="hugh"), "unknown preset 'hugh'"),
    (Request(group="none"), "there is no none case to run"),
])
def test_unknown_names_are_refused(request_: Request, words: str) -> None:
    with pytest.raises(Unknown) as caught:
        choose([case("good"), case("better")], request_)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variables", [{"TEST": "no_such_test"}, {"PRESET": "no_such_preset"}, {"SEED": "x1"}])
def test_command_says_one_line_and_fails(variables: dict[str, str]) -> None:
    """The command as make calls it."""
    done = subprocess.run([sys.executable, "-m", "sim.regress"], cwd=tools.ROOT, capture_output=True, text=True,
                          env=tools.environment() | variables, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("make sim: ")
    assert "Traceback" not in done.stdout
