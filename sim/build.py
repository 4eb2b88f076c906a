"""Builds a `Bench` with Verilator and runs cocotb tests in it.

    simulation = build(bench)
    outcome = simulation.run(RunSpec("my_test", "verif.wire.bench_parse", out=folder, seed=1))

A build is found again by the hash of everything that goes into it (sources, options, tool version), so a changed
line of hardware means a new executable and an unchanged one costs nothing. Builds lie in build/sim.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim import tools
from sim.emit import to_verilog
from sim.results import Outcome, read_outcome
from sim.runner import Failed, VerilatorRunner
from verif.bench import Bench
from verif.cases import RUN_VARIABLE

_HEADERS = (".h", ".hpp", ".vh", ".svh", ".inc")


@dataclass(frozen=True)
class RunSpec:
    """One run of one or all cocotb tests of a module."""

    name: str
    module: str
    out: Path
    """Folder of the run; emptied first. The log, results and waveform stay there."""
    testcase: str | None = None
    """One cocotb test; all of the module if None."""
    seed: int = 1
    preset: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0


@dataclass(frozen=True)
class Simulation:
    """A built executable."""

    bench: Bench
    folder: Path
    waves: bool

    def run(self, spec: RunSpec) -> Outcome:
        """Runs the test and says how it went; a failing test is an outcome, not an exception."""
        if not spec.out.is_absolute():
            raise ValueError(f"folder of the run must be absolute: {spec.out}")
        shutil.rmtree(spec.out, ignore_errors=True)
        spec.out.mkdir(parents=True)
        run_file = spec.out / "run.json"
        run_file.write_text(json.dumps({
            "name": spec.name, "preset": spec.preset, "seed": spec.seed, "parameters": dict(spec.parameters),
            "waves": self.waves}, indent=1) + "\n")
        runner = VerilatorRunner(self.waves, timeout=spec.timeout)
        runner.extra_environment = {RUN_VARIABLE: str(run_file), "COCOTB_ANSI_OUTPUT": "0"}
        crash = ""
        try:
            runner.test(test_module=spec.module, hdl_toplevel=self.bench.top, hdl_toplevel_lang="verilog",
                        testcase=spec.testcase, seed=spec.seed, build_dir=self.folder, test_dir=spec.out,
                        results_xml=str(spec.out / "results.xml"), log_file=spec.out / "sim.log")
        except Failed as problem:
            crash = str(problem)
        except SystemExit as stop:  # the runner's way to say that the results hold a failure
            crash = f"simulation exited with {stop.code}"
        return read_outcome(spec.out, crash)


def build(bench: Bench, waves: bool = False, jobs: int = 2) -> Simulation:
    """Builds the bench, or finds the same build made earlier. Raises ToolError with the end of the log."""
    tools.check()
    for path in (*bench.sources, *bench.cpp, *bench.libraries):
        if not path.exists():
            raise tools.ToolError(f"bench {bench.name}: {path.name} not found in {path.parent}")
    generated = {name: to_verilog(component, name) for name, component in bench.components.items()}
    arguments = _arguments(bench, waves)
    key = _key(bench, generated, arguments)
    folder = tools.BUILD / "sim" / f"{bench.name}-{key}"
    done = folder / ".done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "w") as lock:
        # Parallel test workers may want the same executable: the first builds it, the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _compile(bench, generated, arguments, folder, waves, jobs)
            done.touch()
    return Simulation(bench, folder, waves)


def _compile(bench: Bench, generated: Mapping[str, str], arguments: list[str], folder: Path, waves: bool,
             jobs: int) -> None:
    sources = []
    for name, text in generated.items():
        path = folder / f"{name}.v"
        path.write_text(text)
        sources.append(path)
    control = folder / "visible.vlt"
    control.write_text(_visible(bench))
    log = folder / "build.log"
    runner = VerilatorRunner(waves, jobs=jobs, public=bench.visible == "all")
    try:
        runner.build(sources=[control, *sources, *bench.sources], hdl_toplevel=bench.top, build_dir=folder,
                     includes=list(bench.includes), parameters=dict(bench.parameters), defines=dict(bench.defines),
                     build_args=arguments, timescale=("1ns", "1ps"), log_file=log)
    except (Failed, SystemExit) as problem:
        errors = [line for line in log.read_text(errors="replace").splitlines() if "rror" in line][:12]
        raise tools.ToolError(f"bench {bench.name} does not build ({problem}); log {log}\n" + "\n".join(errors)) \
            from None


def _visible(bench: Bench) -> str:
    """Verilator control file that lets Python see the signals of the top module only."""
    lines = ["`verilator_config"]
    if bench.visible == "top":
        lines.append(f'public_flat_rw -module "{bench.top}" -var "*"')
    return "\n".join(lines) + "\n"


def _arguments(bench: Bench, waves: bool) -> list[str]:
    """Verilator's arguments beyond what the runner gives. Warnings do not stop a build: `make verilog` judges them."""
    flags = [*bench.cflags, *(f"-I{path}" for path in bench.includes)]
    arguments = ["--timing", "-Wno-fatal", "-Wno-DECLFILENAME"]
    for flag in flags:
        arguments += ["-CFLAGS", flag]
    for library in bench.libraries:
        arguments += ["-LDFLAGS", f"{library} -Wl,-rpath,{library.parent}"]
    for flag in bench.ldflags:
        arguments += ["-LDFLAGS", flag]
    arguments += bench.build_args
    arguments += [str(path) for path in bench.cpp]
    if waves:
        arguments.append(f"--trace-{tools.wave_format()}")
        arguments.append("--trace-structs")
    return arguments


def _key(bench: Bench, generated: Mapping[str, str], arguments: list[str]) -> str:
    """Hash of everything that decides what the executable does."""
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            digest.update(len(data).to_bytes(8, "big") + data)

    add(tools.verilator_version(), bench.top, bench.visible, *arguments)
    add(json.dumps([dict(bench.parameters), dict(bench.defines)], sort_keys=True, default=str))
    for name, text in generated.items():
        add(name, text)
    for path in (*bench.sources, *bench.cpp, *bench.libraries, *_headers(bench)):
        add(path.name, path.read_bytes())
    return digest.hexdigest()[:12]


def _headers(bench: Bench) -> Iterable[Path]:
    """Files that the sources may include: all headers beside them and in the include folders."""
    folders = {*bench.includes, *(path.parent for path in (*bench.sources, *bench.cpp))}
    for folder in sorted(folders):
        for entry in sorted(os.listdir(folder)):
            if entry.endswith(_HEADERS):
                yield folder / entry
