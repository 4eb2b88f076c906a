#!/bin/sh
# Makes the Python environment $1 from the lock file $2. Run by `make env`.
# One clear line when the machine lacks something, because this is the first thing a new user meets.
set -eu
venv=$1
lock=$2
python=${PYTHON3:-python3}

fail() { echo "make env: $1" >&2; exit 1; }

command -v "$python" >/dev/null || fail "python3 not found; install Python 3.11 or newer (apt install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed, $python is $("$python" -V 2>&1)"

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    if "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    elif command -v virtualenv >/dev/null; then
        virtualenv --quiet --clear -p "$python" "$venv"
    else
        fail "this Python has no venv module; install it (apt install python3-venv) or virtualenv"
    fi
fi

echo "make env: installing $(grep -c '^[a-z0-9-]*==' "$lock") pinned packages into $venv"
# Hashes make the result independent of which index or mirror the packages come from.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" || fail "pip could not install the lock file"
