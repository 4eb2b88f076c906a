"""What no file of the repository may hold: paths of somebody's machine, addresses of package servers, endless files."""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

LIMIT = 500
"""Lines after which a source file is too long to be read in one go."""
SOURCES = (".py", ".sv", ".v", ".vh", ".svh", ".c", ".cc", ".cpp", ".h", ".hpp")

# Put together from pieces, so that this file does not find itself.
_FOLDERS = ("home", "root", "work", "opt", "Users", "tmp")
MACHINE_PATH = re.compile(r"(?<![\w.$})\]*~-])/(?:" + "|".join(_FOLDERS) + r")/[\w.-]")
INDEX = re.compile("|".join((
    "py" + r"pi\.org", "python" + "hosted", r"--(?:extra-)?" + "index-url", "--find-" + "links",
    "registry" + r"\.npmjs", "deb" + r"\.debian\.org")))


def tracked(root: Path) -> list[Path]:
    """Files that git knows, or would add. Without git (an unpacked archive) everything that is not generated."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True,
                          check=False)
    if done.returncode == 0:
        return [root / name for name in done.stdout.decode().split("\0") if name and (root / name).is_file()]
    skip = {"build", ".venv", ".git", "__pycache__"}
    found: list[Path] = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in skip]  # not entered: somebody may be writing there
        found += [Path(folder, name) for name in names]
    return found


def check(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """One line for each finding."""
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # pictures, captures
        name = path.relative_to(root)
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if found := MACHINE_PATH.search(line):
                yield f"{name}:{number}: path of one machine: {line[found.start():].split()[0][:60]}"
            if found := INDEX.search(line):
                yield f"{name}:{number}: address of a package server: {found[0]}"
        if path.suffix in SOURCES and len(lines) > LIMIT:
            yield f"{name}: {len(lines)} lines; more than {LIMIT} in one file, split it"
