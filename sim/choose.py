"""Which cases a command line asks for, and one clear line when it asks for what does not exist."""

import difflib
import importlib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verif.cases import BASE_SEED, Case, derive_seed


class Unknown(Exception):
    """The user named something that does not exist; the message is the line to print."""


def unknown(kind: str, name: str, known: Iterable[str]) -> Unknown:
    """The message for an unknown name: near misses, or the whole list while it is short."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=4, cutoff=0.5)
    if not names:
        hint = f"there is no {kind} yet"
    elif near:
        hint = f"did you mean {', '.join(near)}?"
    elif len(names) <= 8:
        hint = f"known: {', '.join(names)}"
    else:
        hint = f"{len(names)} are known, for example {', '.join(names[:4])}"
    return Unknown(f"unknown {kind} {name!r}; {hint}")


def hardware_presets() -> list[str]:
    """Names of the presets in hdl.params; empty while there is no hardware description."""
    if importlib.util.find_spec("hdl") is None or importlib.util.find_spec("hdl.params") is None:
        return []
    return list(importlib.import_module("hdl.params").PRESETS)


def check_preset(name: str, also: Iterable[str] = ()) -> str:
    """The name, if there is a preset called so."""
    known = {*hardware_presets(), *also}
    if name not in known:
        raise unknown("preset", name, known)
    return name


@dataclass(frozen=True)
class Request:
    """What the variables on the command line ask for."""

    test: str = ""
    """One case, several separated by commas, or a prefix followed by *."""
    preset: str = ""
    seed: int | None = None
    waves: bool = False
    group: str = "regression"

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ, group: str = "regression") -> "Request":
        """Reads TEST, PRESET, SEED and WAVES."""
        text = environment.get("SEED", "").strip()
        try:
            seed = int(text, 0) if text else None
        except ValueError:
            raise Unknown(f"SEED must be a whole number, not {text!r}") from None
        waves = environment.get("WAVES", "").strip().lower() not in ("", "0", "no", "off", "false")
        return Request(environment.get("TEST", "").strip(), environment.get("PRESET", "").strip(), seed, waves, group)


@dataclass(frozen=True)
class Chosen:
    """A case with the preset and seed it is going to run with."""

    case: Case
    preset: str
    base_seed: int
    seed: int

    @property
    def replay(self) -> str:
        """The one line that runs exactly this again."""
        return f"make sim TEST={self.case.name} SEED={self.base_seed} PRESET={self.preset}"


def choose(cases: list[Case], request: Request) -> list[Chosen]:
    """The cases to run. Raises Unknown rather than running nothing."""
    if request.preset:
        check_preset(request.preset, {preset for case in cases for preset in case.presets})
    selected = _by_name(cases, request)
    if request.preset:
        fitting = [case for case in selected if request.preset in case.presets]
        if not fitting:
            names = sorted({preset for case in selected for preset in case.presets})
            raise Unknown(f"no selected test runs with preset {request.preset!r}; they run with {', '.join(names)}")
        selected = fitting
    base = BASE_SEED if request.seed is None else request.seed
    chosen = []
    for case in selected:
        seed = case.seed if case.seed is not None else derive_seed(case.name, base)
        chosen.append(Chosen(case, request.preset or case.presets[0], base, seed))
    return chosen


def _by_name(cases: list[Case], request: Request) -> list[Case]:
    if not request.test:
        selected = [case for case in cases if case.group == request.group]
        if not selected:
            raise Unknown(f"there is no {request.group} case to run")
        return selected
    selected = []
    for name in filter(None, (part.strip() for part in request.test.split(","))):
        if name.endswith("*"):
            found = [case for case in cases if case.name.startswith(name[:-1])]
        else:
            found = [case for case in cases if case.name == name]
        if not found:
            raise unknown("test", name, (case.name for case in cases))
        selected += [case for case in found if case not in selected]
    return selected
