"""The mutation runner: a fault that a test notices, one that none notices, and entries that are wrong."""

from pathlib import Path

import pytest

from sim.mutants import Mutant, load, run
from sim.tools import ToolError


def project(root: Path) -> Path:
    """A whole project of one function and its test."""
    (root / "thing.py").write_text("def double(x):\n    return x * 2\n\n\ndef unused(x):\n    return x - 1\n")
    (root / "test_thing.py").write_text("from thing import double\n\n\ndef test_it():\n    assert double(3) == 6\n")
    return root


def mutant(name: str, find: str, replace: str) -> Mutant:
    return Mutant(name, "thing.py", find, replace, tests=("test_thing.py",))


def test_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = project(tmp_path)
    status = run([mutant("noticed", "x * 2", "x * 3"), mutant("unnoticed", "x - 1", "x - 2"),
                  mutant("stale", "x / 2", "x / 3"), mutant("broken", "x * 2", "x *")], root, root / "build" / "m")
    said = capsys.readouterr().out
    assert status == 1 and "1 caught, 3 not" in said
    verdicts = {line.split()[0]: line.split()[1] for line in said.splitlines()}
    assert verdicts["noticed"] == "caught" and verdicts["unnoticed"] == "SURVIVED"
    assert verdicts["stale"] == verdicts["broken"] == "ERROR:"


def test_all_caught_is_success(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert run([mutant("noticed", "x * 2", "x * 3")], root, root / "build" / "mutants") == 0


def test_failing_tests_prove_nothing(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "test_thing.py").write_text("def test_it():\n    assert False\n")
    assert run([mutant("noticed", "x * 2", "x * 3")], root, root / "build" / "mutants") == 2


@pytest.mark.parametrize("text, words", [
    ('[[mutant]]\nname="a"\nfile="f"\nfind="x"\nreplace="y"\n', "names no test"),
    ('[[mutant]]\nname="a"\nfile="f"\nfind="x"\ntests=["t"]\n', "replace"),
    ('[[mutant]]\nname="a"\nfile="f"\nfind="x"\nreplace="y"\ntests=["t"]\n' * 2, "two mutants"),
])
def test_wrong_entries_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ToolError, match=words):
        load(tmp_path)


