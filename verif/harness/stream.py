"""Reads the event stream of the harness (verif/harness/events.h)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

_HEADER = Struct("<BBBBIQQQ")


class EventType(IntEnum):
    """What happened; the same numbers as in events.h."""

    SENT = 0
    DELIVERED = 1
    RECORD = 2
    COMPLETION = 3
    ANSWER = 4
    ERROR = 5
    MEMORY = 6
    LINK = 7
    LOST = 8


SAME = 1  # flag of DELIVERED: no payload, the bytes are those of the SENT event with the same id
BAD = 2  # flag of SENT and DELIVERED: tuser was set

OWNERS = ("req", "rsp")  # ``part`` of RECORD


class Event(NamedTuple):
    """One event. ``part`` is the plane, or the owner of a record; ``clock`` counts from the end of reset."""

    type: int
    nic: int
    part: int
    flags: int
    clock: int
    id: int
    aux: int
    data: bytes


def events(chunk: bytes) -> Iterator[Event]:
    """The events in ``chunk``, which holds whole ones. ValueError when it does not."""
    at, end = 0, len(chunk)
    unpack = _HEADER.unpack_from
    while at < end:
        if end - at < 32:
            raise ValueError(f"an event is cut off after {end - at} bytes")
        kind, nic, part, flags, length, clock, number, aux = unpack(chunk, at)
        at += 32
        if end - at < length:
            raise ValueError(f"an event of {length} bytes is cut off after {end - at}")
        yield Event(kind, nic, part, flags, clock, number, aux, chunk[at : at + length])
        at += (length + 7) & ~7
