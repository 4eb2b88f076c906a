"""`make lock`: resolves requirements.in into requirements.lock, with hashes and without naming any package server."""

import subprocess
import sys
import venv

from sim import tools

HEADER = """\
# Every package of the environment, direct and transitive, at one exact version and checked by hash.
# Made from requirements.in by `make lock`; `make env` installs exactly this. Do not edit by hand.
"""


def main() -> int:
    """Works in an environment of its own: the resolver is no part of what it resolves."""
    folder = tools.BUILD / "lock"
    venv.create(folder, with_pip=True, clear=True)
    python = str(folder / "bin" / "python")
    output = folder / "requirements.lock"
    output.write_text((tools.ROOT / "requirements.lock").read_text())  # versions move only where they must
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-tools"], check=True)
    done = subprocess.run(
        [python, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--allow-unsafe", "--no-header",
         "--no-emit-index-url", "--no-emit-" + "find-links", "--no-emit-trusted-host", *sys.argv[1:],
         "-o", str(output), "requirements.in"], cwd=tools.ROOT, check=False)
    if done.returncode:
        return done.returncode
    lines = [line for line in output.read_text().splitlines(keepends=True) if not line.startswith("# ")]
    (tools.ROOT / "requirements.lock").write_text(HEADER + "".join(lines).lstrip("\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
