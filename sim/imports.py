"""Who may import whom. Imports run one way, so that each part can be read, used and tested without those above it.

model <- hdl <- boards;  model, hdl <- verif <- sim.  The hardware takes its constants from model.spec and nothing
else of the model: two descriptions that must agree in a test cannot share code.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("model", "hdl", "verif", "sim", "boards")

ALLOWED: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "hdl": ("hdl", "model.spec"),
    "boards": ("boards", "hdl", "model.spec"),
    "verif": ("verif", "model", "hdl"),
    "sim": ("sim", "verif", "model", "hdl", "boards"),
}
"""Package -> what it may import of this project; a name stands for everything inside it."""

OUTSIDE: dict[str, tuple[str, ...]] = {
    "hdl": ("amaranth",),
    "model": ("numpy", "scapy", "pytest", "hypothesis"),
}
"""Package -> the only packages from outside, besides the standard library, that it may import. Others are free."""


@dataclass(frozen=True)
class Violation:
    """One import that breaks a rule."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Full names of everything a module imports, relative imports resolved. `from a import b` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and _is_import_call(node.func) and node.args:
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == entry or name.startswith(entry + ".") for entry in allowed)


def check_file(root: Path, path: Path) -> Iterator[Violation]:
    """Rule breaches of one file of the tree at `root`."""
    relative = path.relative_to(root)
    package = relative.parts[0]
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    try:
        tree = ast.parse(path.read_text())
    except SyntaxError as problem:
        yield Violation(relative, problem.lineno or 1, f"does not parse: {problem.msg}")
        return
    for line, name in imported(tree, module, path.name == "__init__.py"):
        top = name.split(".")[0]
        if top in PACKAGES:
            if not _within(name, ALLOWED[package]):
                rule = ", ".join(ALLOWED[package])
                yield Violation(relative, line, f"{package} may not import {name}; of this project only {rule}")
        elif package in OUTSIDE and top not in OUTSIDE[package] and top not in sys.stdlib_module_names:
            rule = ", ".join(OUTSIDE[package])
            yield Violation(relative, line, f"{package} may not import {name}; from outside only {rule}")


def check(root: Path) -> list[Violation]:
    """All breaches in the tree."""
    return [violation for package in PACKAGES for path in sorted((root / package).rglob("*.py"))
            for violation in check_file(root, path)]
