"""Amaranth to Verilog: the same text on every machine and every run."""

import hashlib
import os
import re
from typing import Any

from amaranth.back import rtlil, verilog

from sim.tools import BUILD

_CACHE = BUILD / "cache" / "verilog"


def to_verilog(component: Any, name: str) -> str:
    """Verilog of an Amaranth component as module `name`.

    Source positions are left out: they would put machine paths into the text and make it depend on where the tree
    lies. The slow second half (Yosys) is cached by the text that goes into it.
    """
    if callable(component) and not hasattr(component, "elaborate"):
        component = component()
    intermediate = rtlil.convert(component, name=name, emit_src=False)
    key = hashlib.sha256(intermediate.encode()).hexdigest()[:24]
    cached = _CACHE / f"{key}.v"
    if cached.exists():
        return cached.read_text()
    text: str = verilog._convert_rtlil_text(intermediate, strip_internal_attrs=True)
    text = _strip(text)
    _CACHE.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(f".{os.getpid()}.part")
    partial.write_text(text)
    partial.replace(cached)
    return text


def _strip(text: str) -> str:
    """Removes what is left of source positions and trailing blanks."""
    text = re.sub(r"^ *\(\* *src *= *\"[^\"]*\" *\*\)\n", "", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() + "\n"
