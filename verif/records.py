"""Decoders of commit records, generated from the layouts of ``hdl/trace.py``.

A record arrives as raw bytes, bit 0 first. Per kind one function is generated that unpacks it to plain integers: the bytes become 64-bit words
once, a field is then one shift and mask. :class:`Decoder` also generates comparisons of the state that a record leaves with objects of the
golden model, which build nothing as long as both agree.

Measured (tiny and board): a body 1 to 5 us, a comparison of the whole state 6 to 9 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data

from hdl.params import Params
from hdl.trace import TraceLayouts
from model.spec import Kind

Words = tuple[int, ...]
_KIND_NAMES = {int(kind): kind.name for kind in Kind}
OWNER_NAMES = ("requestor", "responder")


def _leaf(offset: int, width: int, signed: bool) -> str:
    """Expression of the integer in bits [offset, offset + width) of the words ``w``."""
    word, shift = divmod(offset, 64)
    parts, taken = [], 0
    while taken < width:
        take = min(64 - shift, width - taken)
        text = f"w[{word}]" if shift == 0 else f"w[{word}] >> {shift}"
        if shift + take < 64:
            text = f"{text} & {(1 << take) - 1:#x}"
        parts.append(f"({text}) << {taken}" if taken else f"({text})" if width > take else text)
        taken, word, shift = taken + take, word + 1, 0
    text = " | ".join(parts) if parts else "0"
    return f"(({text}) ^ {1 << width - 1:#x}) - {1 << width - 1:#x}" if signed else f"({text})"


def expression(shape: Any, offset: int) -> str:
    """Python expression that decodes a layout at ``offset``: int, dict of fields, or list."""
    if isinstance(shape, data.ArrayLayout):
        size = Shape.cast(shape.elem_shape).width
        return "[" + ", ".join(expression(shape.elem_shape, offset + i * size) for i in range(shape.length)) + "]"
    if isinstance(shape, data.UnionLayout):
        return "None"  # the caller decodes the right member
    if isinstance(shape, data.StructLayout):
        return "{" + ", ".join(f"{name!r}: {expression(field.shape, offset + field.offset)}" for name, field in shape) + "}"
    cast = Shape.cast(shape)
    return _leaf(offset, cast.width, cast.signed)


def _leaves(shape: Any, offset: int, path: str) -> Iterator[tuple[str, str]]:
    """Attribute path and expression of every integer of a layout."""
    if isinstance(shape, data.ArrayLayout):
        size = Shape.cast(shape.elem_shape).width
        for i in range(shape.length):
            yield from _leaves(shape.elem_shape, offset + i * size, f"{path}[{i}]")
    elif isinstance(shape, data.StructLayout):
        for name, field in shape:
            yield from _leaves(field.shape, offset + field.offset, f"{path}.{name}")
    else:
        cast = Shape.cast(shape)
        yield path, _leaf(offset, cast.width, cast.signed)


def _compile(source: str, name: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - the text is made from layouts only
    function: Callable[..., Any] = scope[name]
    return function


@dataclass(frozen=True)
class Difference:
    """One field in which the hardware's state differs from the golden one."""

    path: str
    hardware: int
    golden: Any


class Decoder:
    """Decodes the records of one owner of an instance. ``owner``: 0 requestor, 1 responder."""

    def __init__(self, params: Params, owner: int) -> None:
        layouts = TraceLayouts(params)
        self.owner = owner
        self.layout: data.StructLayout = (layouts.req, layouts.rsp)[owner]
        bodies: dict[str, data.StructLayout] = (layouts.req_bodies, layouts.rsp_bodies)[owner]
        self.size = (self.layout.size + 31) // 32 * 4
        """Bytes of a record as the harness delivers it."""
        count = (self.layout.size + 63) // 64
        self._unpack = Struct(f"<{count}Q").unpack
        self._pad = 8 * count
        body_at = self.layout["body"].offset
        self.body: dict[int, Callable[[Words], dict[str, Any]]] = {}
        """By kind: words -> body as a dict (unions inside, such as rx.ext, are None)."""
        for name, shape in bodies.items():
            self.body[Kind[name.upper()]] = _compile(f"def f(w): return {expression(shape, body_at)}", "f")
        self.head: Callable[[Words], tuple[int, int, int, int]] = _compile(
            "def f(w): return ("
            + ", ".join(_leaf(self.layout[n].offset, Shape.cast(self.layout[n].shape).width, False) for n in ("kind", "qp", "seq", "tick"))
            + ")",
            "f",
        )
        """Words -> kind, qp, seq, tick."""
        self.ext: dict[str, Callable[[Words], dict[str, Any]]] = {}
        """Extension headers of the frame in a record, by member of ``layouts.ext``: words -> dict."""
        for kind, shape in bodies.items():
            if "rx" in dict(shape):
                rx = shape["rx"]
                at = body_at + rx.offset + rx.shape["ext"].offset
                for member, field in rx.shape["ext"].shape:
                    text = f"def f(w): return {expression(field.shape, at + field.offset)}"
                    self.ext[f"{kind}.{member}"] = _compile(text, "f")
        self._states = {name: (self.layout[name].shape, self.layout[name].offset) for name in ("ctx", "path") if name in dict(self.layout)}
        self._same = {name: self._comparison(name) for name in self._states}

    def _comparison(self, name: str) -> Callable[[Words, Any], bool]:
        shape, offset = self._states[name]
        terms = [f"({text}) == g{path}" for path, text in _leaves(shape, offset, "")]
        return _compile("def f(w, g): return " + " and ".join(terms), "f")

    def words(self, raw: bytes) -> Words:
        """The record as 64-bit words. ValueError when its size is wrong."""
        if len(raw) != self.size:
            raise ValueError(f"a record of the {OWNER_NAMES[self.owner]} has {self.size} bytes, not {len(raw)}")
        return self._unpack(raw if len(raw) == self._pad else raw + bytes(self._pad - len(raw)))

    def same(self, state: str, words: Words, golden: Any) -> bool:
        """Whether the state ``ctx`` or ``path`` of the record equals the attributes of ``golden``."""
        return self._same[state](words, golden)

    def differences(self, state: str, words: Words, golden: Any) -> list[Difference]:
        """Every field of the state in which the record and ``golden`` differ."""
        shape, offset = self._states[state]
        found = []
        for path, text in _leaves(shape, offset, ""):
            hardware, model = eval(text, {"w": words}), eval(f"g{path}", {"g": golden})  # noqa: S307 - as above
            if hardware != model:
                found.append(Difference(path.lstrip("."), hardware, model))
        return found

    def state(self, state: str, words: Words) -> Any:
        """The whole state ``ctx`` or ``path`` as dicts and lists."""
        shape, offset = self._states[state]
        return eval(expression(shape, offset), {"w": words})  # noqa: S307

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Everything, for people: head, body, states."""
        words = self.words(raw)
        kind, qp, seq, tick = self.head(words)
        out: dict[str, Any] = {"kind": Kind(kind).name, "qp": qp, "seq": seq, "tick": tick, "body": self.body[kind](words)}
        rx = out["body"].get("rx")
        if rx is not None:
            rx["ext"] = self.ext[f"{Kind(kind).name.lower()}.{member_of(rx['opcode'])}"](words)
        return out | {name: self.state(name, words) for name in self._states}


def kind_name(kind: int) -> str:
    """Name of a kind, or its number when it is none."""
    return _KIND_NAMES.get(kind, str(kind))


def member_of(opcode: int) -> str:
    """Member of ``layouts.ext`` that holds the extension headers of an opcode."""
    return {0xDC: "sack", 0xDD: "nack", 0xD1: "ack", 0xDE: "probe"}.get(opcode, "data")
