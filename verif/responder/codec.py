"""Layouts to plain integers and dictionaries, fast enough for every clock of a bench (Amaranth's own constants are built for elaboration)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data


def encoder(layout: Any) -> Callable[[Any], int]:
    """A function that packs a dict (list, int) of ``layout`` into its bits. Missing fields are 0; an unknown name is a KeyError."""
    if isinstance(layout, data.ArrayLayout):
        element, width = encoder(layout.elem_shape), Shape.cast(layout.elem_shape).width
        return lambda values: sum(element(value) << i * width for i, value in enumerate(values))
    if isinstance(layout, data.Layout):
        parts = {name: (encoder(f.shape), f.offset) for name, f in layout}

        def pack(fields: dict[str, Any]) -> int:
            bits = 0
            for name, value in fields.items():
                part, offset = parts[name]
                bits |= part(value) << offset
            return bits

        return pack
    mask = (1 << Shape.cast(layout).width) - 1
    return lambda value: value & mask


def decoder(layout: Any) -> Callable[[int], Any]:
    """The reverse of :func:`encoder`. Of a union every member is decoded when it is asked for (a :class:`Union`)."""
    if isinstance(layout, data.ArrayLayout):
        element, width = decoder(layout.elem_shape), Shape.cast(layout.elem_shape).width
        return lambda bits: [element(bits >> i * width) for i in range(layout.length)]
    if isinstance(layout, data.UnionLayout):
        members = {name: decoder(f.shape) for name, f in layout}
        mask = (1 << layout.size) - 1
        return lambda bits: Union(members, bits & mask)
    if isinstance(layout, data.Layout):
        parts = [(name, decoder(f.shape), f.offset) for name, f in layout]
        return lambda bits: {name: part(bits >> offset) for name, part, offset in parts}
    shape = Shape.cast(layout)
    mask, sign = (1 << shape.width) - 1, (1 << shape.width - 1 if shape.signed else 0)
    return lambda bits: ((bits & mask) ^ sign) - sign


class Union:
    """Bits that can be read as any member: ``union["name"]``."""

    __slots__ = ("_members", "bits")

    def __init__(self, members: dict[str, Callable[[int], Any]], bits: int) -> None:
        self._members, self.bits = members, bits

    def __getitem__(self, name: str) -> Any:
        return self._members[name](self.bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Union) and other.bits == self.bits

    def __repr__(self) -> str:
        return f"Union({self.bits:#x})"
