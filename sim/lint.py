"""`make lint`: everything that can be said about the sources without running them."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable

from sim import hygiene, imports, tools
from sim.choose import hardware_presets

VERILOG_PRESETS = ("tiny", "board")


def _command(*words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-m", *words], cwd=tools.ROOT, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    return said or [f"{words[0]} exited with {done.returncode}"] if done.returncode else []


def ruff() -> list[str]:
    """Errors and style."""
    return _command("ruff", "check", "--no-cache", "--output-format", "concise", ".")


def mypy() -> list[str]:
    """Strict types in model/ and sim/, as pyproject.toml says."""
    packages = [name for name in ("model", "sim") if (tools.ROOT / name / "__init__.py").exists()]
    return _command("mypy", *(word for name in packages for word in ("-p", name)))


def import_rules() -> list[str]:
    """model <- hdl <- boards; model, hdl <- verif <- sim."""
    return [str(violation) for violation in imports.check(tools.ROOT)]


def tree() -> list[str]:
    """No machine paths, no server addresses, no endless files."""
    return list(hygiene.check(tools.ROOT, hygiene.tracked(tools.ROOT)))


def verilog() -> list[str]:
    """Generated Verilog, when the hardware has a top level."""
    if not hardware_presets() or importlib.util.find_spec("hdl.nic") is None:
        return []
    from sim import emit
    from sim import verilog as generated

    findings = []
    folder = tools.BUILD / "lint"
    folder.mkdir(parents=True, exist_ok=True)
    for preset in VERILOG_PRESETS:
        path = folder / f"{generated.TOP}_{preset}.v"
        try:
            path.write_text(emit.to_verilog(generated.nic(preset), generated.TOP))
            generated.lint(path, generated.TOP)
        except tools.ToolError as problem:
            findings.append(f"preset {preset}: {problem}")
    return findings


CHECKS: dict[str, Callable[[], list[str]]] = {
    "ruff": ruff, "mypy": mypy, "imports": import_rules, "tree": tree, "verilog": verilog}


def main() -> int:
    """Runs all checks, whatever the earlier ones found; 1 if anything was found."""
    bad = 0
    for name, run in CHECKS.items():
        start = time.monotonic()
        findings = run()
        for line in findings:
            print(f"{name}: {line}")
        bad += bool(findings)
        print(f"lint {name:<8} {'FAIL' if findings else 'ok'}  {time.monotonic() - start:.1f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
