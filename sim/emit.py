"""Amaranth to Verilog: the same text on every machine and every run."""

import hashlib
import os
import re
from typing import Any

from amaranth.back import rtlil, verilog

from sim.tools import BUILD

_CACHE = BUILD / "cache" / "verilog"


def to_verilog(component: Any, name: str) -> str:
    """Verilog of an Amaranth component (or of what a function returns) as module `name`.

    The slow second half (Yosys) is cached by the text that goes into it.
    """
    if isinstance(component, type) or not hasattr(component, "elaborate"):
        component = component()
    intermediate = _intermediate(component, name)
    key = hashlib.sha256(intermediate.encode()).hexdigest()[:24]
    cached = _CACHE / f"{key}.v"
    if cached.exists():
        return cached.read_text()
    text = _to_text(intermediate)
    _CACHE.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(f".{os.getpid()}.part")
    partial.write_text(text)
    partial.replace(cached)
    return text


def fresh_verilog(component: Any, name: str) -> str:
    """The same without the cache."""
    return _to_text(_intermediate(component, name))


def _intermediate(component: Any, name: str) -> str:
    """RTLIL without source positions: they would put machine paths into the text, and make it depend on where the
    tree lies."""
    return str(rtlil.convert(component, name=name, emit_src=False))


def _to_text(intermediate: str) -> str:
    return _strip(verilog._convert_rtlil_text(intermediate, strip_internal_attrs=True))


def _strip(text: str) -> str:
    """Removes what is left of source positions and trailing blanks."""
    text = re.sub(r"^ *\(\* *src *= *\"[^\"]*\" *\*\)\n", "", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() + "\n"
