"""cocotb's Verilator runner, with what this project needs changed: speed, limits, a clean environment."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from cocotb_tools import runner as cocotb_runner

from sim import tools


class Failed(RuntimeError):
    """A command of the build or the simulation did not end well; the message says how."""


class VerilatorRunner(cocotb_runner.Verilator):
    """Differences from the original:

    - Verilator is called directly, with the real compiler named to make, and optimised for long runs.
    - `--public-flat-rw` only when asked for: it keeps every signal alive and costs several times the speed.
    - waves are decided by the caller alone, as FST or VCD, not by an environment variable.
    - a command that runs too long is killed with everything it started.
    """

    def __init__(self, waves: bool, *, timeout: float | None = None, jobs: int = 2, public: bool = False) -> None:
        super().__init__()
        self.want_waves = waves
        self.timeout = timeout
        self.jobs = jobs
        self.public = public
        self.extra_environment: Mapping[str, str] = {}
        self.log.setLevel("CRITICAL")

    def _set_env_common(self) -> None:
        super()._set_env_common()
        # cocotb's own additions to PATH come last and stay; everything else is ours.
        path = self.env["PATH"].rsplit(os.pathsep, 1)[-1]
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "WAVES", "GUI", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
            self.env.pop(name, None)
        environment = tools.environment()
        self.env.update(environment)
        self.env["PATH"] = os.pathsep.join([environment["PATH"], path])
        self.env.update(self.extra_environment)

    def _simulator_in_path_build_only(self) -> None:
        self.executable = tools.verilator_command()[0]

    def _build_command(self) -> list[list[str]]:
        self.waves = False
        verilate, compile_ = super()._build_command()
        if not self.public:
            verilate.remove("--public-flat-rw")
        compile_[0] = tools.make()
        compile_ = [word for word in compile_ if not word.startswith("VM_TRACE=")]
        compile_[compile_.index("-j") + 1] = str(self.jobs)
        # Code that runs once is not worth the compiler's time; code that runs every clock is.
        return [verilate, [*compile_, "OPT_FAST=-O2", "OPT_SLOW=-O0", "OPT_GLOBAL=-O2", *tools.make_variables(),
                           f"OBJCACHE={self._object_cache()}"]]

    @staticmethod
    def _object_cache() -> str:
        """Command in front of the compiler; see sim/objcache.py."""
        words = [sys.executable, "-SE", str(tools.ROOT / "sim" / "objcache.py"),
                 str(tools.BUILD / "cache" / "objects"), str(tools.verilator_root() / "include")]
        return shlex.join(words)

    def _test_command(self) -> list[list[str]]:
        self.waves = self.gui = False
        (command,) = super()._test_command()
        if self.want_waves:
            command = [command[0], "--trace", "--trace-file", f"waves.{tools.wave_format()}", *command[1:]]
        return [command]

    def _execute_cmds(self, cmds: Sequence[Sequence[str]], cwd: cocotb_runner.PathLike,
                      stdout: TextIO | None = None) -> None:
        for cmd in cmds:
            process = subprocess.Popen(list(cmd), cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=stdout,
                                       stderr=None if stdout is None else subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(self.timeout)
            except BaseException as problem:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(problem, subprocess.TimeoutExpired):
                    raise Failed(f"killed after {self.timeout:g} s: it did not end by itself") from None
                raise
            if status < 0:
                raise Failed(f"{os.path.basename(cmd[0])} died of {signal.Signals(-status).name}")
            if status > 0:
                raise Failed(f"{os.path.basename(cmd[0])} exited with {status}")
