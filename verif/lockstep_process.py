"""The lockstep in a process of its own, so that the simulator and the golden model each have a core.

Messages through the pipes: a length of 8 bytes, then that many bytes of pickle or event stream. The worker answers only when asked to
finish, or with its report as soon as it has found a difference.
"""

from __future__ import annotations

import pickle
import select
import subprocess
import sys
import traceback
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

from hdl.params import Params
from verif.lockstep import Lockstep, LockstepError

_LENGTH = Struct("<Q")
_ROOT = Path(__file__).resolve().parent.parent


def _write(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: BinaryIO) -> bytes:
    head = pipe.read(8)
    return pipe.read(_LENGTH.unpack(head)[0]) if len(head) == 8 else b""


class RemoteLockstep:
    """As :class:`verif.lockstep.Lockstep`, but :meth:`feed` returns at once and a difference shows in a later call."""

    def __init__(self, params: Params, memory_bytes: int, **options: Any) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "verif.lockstep_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT)
        assert self._process.stdin and self._process.stdout
        self._in: Any = self._process.stdin
        self._out: Any = self._process.stdout
        self.records = -1  # not known before the end
        self._send(pickle.dumps((params, memory_bytes, options)))

    def _send(self, data: bytes) -> None:
        try:
            _write(self._in, data)
        except BrokenPipeError:
            self._answer()

    def _answer(self) -> Any:
        """The worker's answer; LockstepError when it is a difference."""
        data = _read(self._out)
        if not data:
            raise LockstepError(f"the lockstep process ended with {self._process.wait()} and no report")
        answer = pickle.loads(data)  # noqa: S301 - our own worker
        if isinstance(answer, str):
            self.close()
            raise LockstepError(answer)
        return answer

    def feed(self, chunk: bytes) -> None:
        """Hands on events. LockstepError for a difference found in this or an earlier chunk."""
        if select.select([self._out], [], [], 0)[0]:
            self._answer()
        if chunk:
            self._send(b"\0" + chunk)

    def finish(self, clock: int, quiet: bool = True) -> dict[str, Any]:
        """Waits until everything is compared; see :meth:`verif.lockstep.Lockstep.finish`."""
        self._send(b"\1" + pickle.dumps((clock, quiet)))
        answer: dict[str, Any] = self._answer()
        self.records = answer["records"]
        return answer

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._in, self._out):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def work(source: BinaryIO, sink: BinaryIO) -> None:
    """The worker's loop."""
    params, memory_bytes, options = pickle.loads(_read(source))  # noqa: S301 - from our own parent
    lockstep = Lockstep(params, memory_bytes, **options)
    while message := _read(source):
        try:
            if message[0] == 0:
                lockstep.feed(message[1:])
                continue
            _write(sink, pickle.dumps(lockstep.finish(*pickle.loads(message[1:]))))  # noqa: S301
        except LockstepError as problem:
            _write(sink, pickle.dumps(str(problem)))
            return
        except Exception:
            _write(sink, pickle.dumps("the lockstep itself failed:\n" + traceback.format_exc()))
            return


if __name__ == "__main__":
    try:
        work(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # the simulation ended first, and said why
        sys.exit(1)
