"""Compiler launcher that keeps Verilator's runtime library compiled. Verilator's makefiles call it as $(OBJCACHE).

Every executable contains the same few files of Verilator's own runtime; compiling them takes longer than most of our
blocks. Only files inside Verilator's include folder are kept, by the exact command and file contents; everything else
goes straight to the compiler. Used as a script, without the project's packages, to start fast.
"""

import hashlib
import os
import shutil
import subprocess
import sys


def main(command: list[str], store: str, runtime: str) -> int:
    """Runs the compiler command or copies the object that it made an earlier time."""
    source = command[-1]
    if "-o" not in command or not source.startswith(runtime) or "-c" not in command:
        return subprocess.call(command)
    target = command[command.index("-o") + 1]
    with open(source, "rb") as file:
        contents = file.read()
    key = hashlib.sha256("\0".join(command).encode() + b"\0" + contents).hexdigest()[:24]
    kept = os.path.join(store, key + ".o")
    if os.path.exists(kept):
        shutil.copyfile(kept, target)
        return 0
    status = subprocess.call(command)
    if status == 0:
        os.makedirs(store, exist_ok=True)
        partial = f"{kept}.{os.getpid()}"
        shutil.copyfile(target, partial)
        os.replace(partial, kept)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:], sys.argv[1], sys.argv[2]))
