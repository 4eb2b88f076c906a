"""`make mutants-quick`: can the verification fail? Each mutant is one small fault put into RTL or model.

The faults are listed in verif/mutants/*.toml:

    [[mutant]]
    name = "ack_off_by_one"
    file = "hdl/responder/tracker.py"
    find = "cack + 1"            # must occur exactly once in the file
    replace = "cack + 2"
    tests = ["verif/responder/test_tracker.py"]    # pytest, and/or
    cases = ["write_wrap"]                         # system cases, as TEST= takes them

A mutant is caught when one of its tests fails. First all the tests must pass without any fault; a mutant that does
not apply, or breaks the build instead of the behaviour, is an error of the list. TEST= chooses mutants by prefix.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import hygiene, tools

BROKEN = re.compile(r"does not build|SyntaxError|IndentationError|NameError|ImportError|ModuleNotFoundError|"
                    r"error(?:s)? during collection|no tests ran")


@dataclass(frozen=True)
class Mutant:
    """One fault and what has to notice it."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


def load(folder: Path) -> list[Mutant]:
    """All mutants of the lists in `folder`. Raises ToolError for an entry that cannot be meant."""
    mutants: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("mutant", []):
            try:
                values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value
                                          for key, value in entry.items()}
                mutant = Mutant(**values)
            except TypeError as problem:
                raise tools.ToolError(f"{path.name}: {entry.get('name', '?')}: {problem}") from None
            if not mutant.tests and not mutant.cases:
                raise tools.ToolError(f"{path.name}: {mutant.name}: names no test and no case")
            mutants.append(mutant)
    names = [mutant.name for mutant in mutants]
    for name in {name for name in names if names.count(name) > 1}:
        raise tools.ToolError(f"two mutants are called {name}")
    return mutants


def copy_tree(root: Path, folder: Path) -> None:
    """A working copy of the sources. The caches of generated Verilog and objects are shared: they go by content."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in hygiene.tracked(root):
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (folder / "build").mkdir()
    cache = root / "build" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (folder / "build" / "cache").symlink_to(cache)


def apply(mutant: Mutant, folder: Path) -> str:
    """Puts the fault in; returns what is wrong with the entry, or nothing."""
    path = folder / mutant.file
    if not path.exists():
        return f"{mutant.file} does not exist"
    text = path.read_text()
    if text.count(mutant.find) != 1:
        return f"its text occurs {text.count(mutant.find)} times in {mutant.file}, not once"
    if mutant.find == mutant.replace:
        return "it changes nothing"
    path.write_text(text.replace(mutant.find, mutant.replace))
    return ""


def execute(folder: Path, tests: Iterable[str], cases: Iterable[str]) -> tuple[int, str]:
    """Runs tests and cases in a copy until one fails. Returns the exit code and the output."""
    env = dict(os.environ) | {"JOBS": "1", "RERUN": "0", "TEST": "", "PYTHONDONTWRITEBYTECODE": "1"}
    commands = []
    if tests:
        commands.append((["-m", "pytest", "-x", "-q", *tests], env))
    if cases:
        commands.append((["-m", "sim.regress"], env | {"TEST": ",".join(cases)}))
    output = ""
    for words, variables in commands:
        done = subprocess.run([sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True,
                              check=False)
        output += done.stdout + done.stderr
        if done.returncode:
            return done.returncode, output
    return 0, output


def judge(mutant: Mutant, root: Path, folder: Path) -> str:
    """"caught", "SURVIVED" or what is wrong with the entry."""
    copy = folder / mutant.name
    copy_tree(root, copy)
    if problem := apply(mutant, copy):
        return f"ERROR: {problem}"
    status, output = execute(copy, mutant.tests, mutant.cases)
    (folder / f"{mutant.name}.log").write_text(output)
    shutil.rmtree(copy, ignore_errors=True)
    if status == 0:
        return "SURVIVED"
    if status != 1 or BROKEN.search(output):
        return f"ERROR: it breaks the run instead of the behaviour (exit code {status})"
    return "caught"


def run(mutants: list[Mutant], root: Path, folder: Path) -> int:
    """Judges all; prints one line each; 0 if all were caught."""
    folder.mkdir(parents=True, exist_ok=True)
    pristine = folder / "unchanged"
    copy_tree(root, pristine)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    cases = sorted({case for mutant in mutants for case in mutant.cases})
    status, output = execute(pristine, tests, cases)
    if status:
        print(output)
        print("mutants: the tests do not pass without any mutant")
        return 2
    results = []
    with ThreadPoolExecutor(2) as pool:
        for mutant, result in zip(mutants, pool.map(lambda one: judge(one, root, folder), mutants), strict=True):
            results.append(result)
            print(f"{mutant.name:<40} {result}", flush=True)
    caught = results.count("caught")
    print(f"mutants: {caught} caught, {len(results) - caught} not")
    return 0 if caught == len(results) else 1


def main() -> int:
    """Exit code 0: all caught. 1: some not. 2: nothing to run or not runnable."""
    wanted = os.environ.get("TEST", "").rstrip("*")
    try:
        mutants = [mutant for mutant in load(tools.ROOT / "verif" / "mutants") if mutant.name.startswith(wanted)]
    except (tools.ToolError, tomllib.TOMLDecodeError) as problem:
        print(f"make mutants-quick: {problem}", file=sys.stderr)
        return 2
    if not mutants:
        print(f"make mutants-quick: no mutant {wanted or 'is listed'} in verif/mutants", file=sys.stderr)
        return 2
    return run(mutants, tools.ROOT, tools.BUILD / "mutants")


if __name__ == "__main__":
    sys.exit(main())
