"""The static checks find what they are there for: each is given a small tree with a planted fault."""

from pathlib import Path

import pytest

from sim import hygiene, imports, requirements_check


def plant(root: Path, **files: str) -> Path:
    """Writes files; `a__b` in a name stands for a/b."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("module, text, words", [
    ("model__wire", "import hdl.params", "model may not import hdl.params"),
    ("model__wire", "from verif import cases", "model may not import verif.cases"),
    ("model__wire", "import amaranth", "model may not import amaranth"),
    ("hdl__engine", "from model.serial import less", "hdl may not import model.serial.less"),
    ("hdl__engine", "from model import spec, wire", "hdl may not import model.wire"),
    ("hdl__engine", "import numpy", "hdl may not import numpy"),
    ("hdl__wire__parse", "from ...model import wire", "hdl may not import model.wire"),
    ("hdl__wire__parse", "def f():\n    import importlib\n    importlib.import_module('verif.cases')\n",
     "hdl/wire/parse.py:3: hdl may not import verif.cases"),
    ("verif__agent", "from sim.build import build", "verif may not import sim.build.build"),
    ("boards__top", "from model.wire import Frame", "boards may not import model.wire.Frame"),
    ("sim__broken", "def f(:\n", "does not parse"),
])
def test_import_violation_is_found(tmp_path: Path, module: str, text: str, words: str) -> None:
    found = [str(violation) for violation in imports.check(plant(tmp_path, **{module: text}))]
    assert len(found) == 1 and words in found[0], found


def test_allowed_imports_pass(tmp_path: Path) -> None:
    plant(tmp_path, hdl__engine="from model import spec\nfrom model.spec import OPCODES\nfrom amaranth import Module\n"
          "from . import params\nimport math\n", model__wire="import numpy\nfrom .spec import A\n",
          verif__agent="import model.wire\nfrom hdl import engine\nimport cocotb\n",
          sim__run="from verif import cases\nimport hdl.nic\n", boards__top="from hdl.nic import Nic\n")
    assert imports.check(tmp_path) == []


# Made up here and not written out: this very file is searched for numbers of requirements too.
ONE, TWO, THREE = (f"MRC-REQ-{number:03}" for number in (1, 2, 3))


def specification(root: Path, *lines: str) -> Path:
    (root / "docs").mkdir()
    (root / "docs" / "spec.md").write_text("\n".join(lines) + "\n")
    return root


def test_requirement_without_test_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specification(tmp_path, f"| {ONE} | A frame has a header. |", f"- **{TWO}** The header is right, see {ONE}.")
    plant(tmp_path, verif__bench_x=f"'''{ONE}'''\n", model__plain=f"'''{TWO}'''\n")
    assert requirements_check.check(tmp_path) == 1
    said = capsys.readouterr().out
    assert f"{TWO}: no test names it" in said and ONE not in said


def test_unknown_and_doubled_requirements_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specification(tmp_path, f"### {ONE}", f"{ONE} again", f"{TWO}")
    plant(tmp_path, verif__bench_x=f"'''{ONE} {THREE}'''\n", model__tests__test_y=f"'''{TWO}'''\n")
    assert requirements_check.check(tmp_path) == 1
    said = capsys.readouterr().out
    assert f"{THREE}: not in docs/spec.md" in said and f"{ONE}: defined 2 times" in said and TWO not in said


def test_matching_requirements_pass(tmp_path: Path) -> None:
    specification(tmp_path, f"- `{ONE}` text")
    plant(tmp_path, verif__bench_x=f"'''{ONE}'''\n")
    assert requirements_check.check(tmp_path) == 0


@pytest.mark.parametrize("lines", [[], ["no requirement at all"]])
def test_no_specification_is_no_success(tmp_path: Path, lines: list[str]) -> None:
    if lines:
        specification(tmp_path, *lines)
    assert requirements_check.check(tmp_path) == 1


@pytest.mark.parametrize("text, words", [
    ("see /" + "home/somebody/mrc", "path of one machine"),
    ("open('/" + "tmp/x')", "path of one machine"),
    ("pip install --index" + "-url x", "address of a package server"),
    ("\n" * 501, "501 lines"),
])
def test_tree_hygiene_finds(tmp_path: Path, text: str, words: str) -> None:
    plant(tmp_path, hdl__x=text)
    found = list(hygiene.check(tmp_path, [tmp_path / "hdl" / "x.py"]))
    assert len(found) == 1 and words in found[0]


def test_tree_hygiene_passes_ordinary_text(tmp_path: Path) -> None:
    text = "at $HOME/work/x, ~/tmp/y, {root}/opt/z, build/tmp/a, a/work/b, https://example.org/home/x\n"
    plant(tmp_path, hdl__x=text)
    assert list(hygiene.check(tmp_path, [tmp_path / "hdl" / "x.py"])) == []
