"""What a simulation is made of, without saying how it is built.

`sim.build` turns a `Bench` into an executable; block tests and the system harness only describe one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Bench:
    """Sources and options of one simulation executable.

    `components` maps a Verilog module name to the Amaranth component that becomes this module (or to a function
    that makes it). A module can be instantiated several times by the hand-written `sources`.
    """

    name: str
    """Short name for folders and messages."""
    top: str
    """The top module: a key of `components`, or a module in `sources`."""
    components: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Path, ...] = ()
    """Verilog, SystemVerilog and Verilator control files (.vlt)."""
    cpp: tuple[Path, ...] = ()
    """C++ files compiled and linked in (DPI functions)."""
    libraries: tuple[Path, ...] = ()
    """Ready .so, .a or .o files to link against."""
    includes: tuple[Path, ...] = ()
    """Folders searched for `include files, by Verilator and the C++ compiler alike."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Verilog parameters of the top module."""
    defines: Mapping[str, Any] = field(default_factory=dict)
    build_args: tuple[str, ...] = ()
    """More arguments for Verilator."""
    cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    visible: Literal["top", "all"] = "top"
    """Which signals Python can see. "top": those of the top module, and Verilator may optimise everything below.
    "all": every signal, at a cost of several times the speed; for looking inside a small block."""

    @staticmethod
    def of(component: Any, name: str, **options: Any) -> "Bench":
        """The bench of one Amaranth component that is itself the top module, called `name`."""
        return Bench(name=name, top=name, components={name: component}, **options)
