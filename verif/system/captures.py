"""Capture files of a run, looked at with scapy and :mod:`model.layers`: a check that shares no code with the byte codec or the lockstep."""

from __future__ import annotations

import random
from pathlib import Path

from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

from model.layers import EXTENSIONS, LAYERS, MRC, bind_port
from model.spec import UDP_PORT, Opcode

SAMPLE = 24  # frames per file: scapy takes about 2 ms for one


class CaptureError(Exception):
    """A captured frame is not what it should be: file, number of the frame, and why."""


def frames_of(path: Path) -> list[bytes]:
    """The frames in a capture file. CaptureError when it is none."""
    try:
        with RawPcapReader(str(path)) as reader:
            return [data for data, _ in reader]
    except OSError as problem:
        raise CaptureError(f"{path}: {problem}") from problem


def fault_of(frame: bytes, port: int = UDP_PORT) -> str:
    """What is wrong with a frame that should be a whole MRC packet, "" for nothing.

    It must have every header of its opcode, and scapy, building the same headers anew with a pad and an ICRC that it computes itself, must
    arrive at the same bytes.
    """
    if port != UDP_PORT:
        bind_port(port)
    packet = Ether(frame)
    if MRC not in packet:
        return f"scapy finds no MRC packet in {packet.summary()}"
    bth = packet[MRC]
    if bth.opcode not in EXTENSIONS:
        return f"opcode {bth.opcode:#x} is not MRC's"
    for name in EXTENSIONS[Opcode(bth.opcode)]:
        if LAYERS[name.rstrip("?")] not in packet and (bth.ts or not name.endswith("?")):
            return f"no {name.rstrip('?')} after {Opcode(bth.opcode).name}"
    found = bth.icrc
    bth.icrc = None
    again = bytes(packet)
    if again != frame:
        return f"scapy builds {again[-4:].hex()} at the end, the ICRC in the frame is {found or 0:08x}"
    return ""


def check_capture(path: Path, port: int, count: int, rng: random.Random) -> int:
    """The file holds ``count`` frames, and a random sample of them, with one of each opcode, is sound. Returns how many were looked at."""
    frames = frames_of(path)
    if len(frames) != count:
        raise CaptureError(f"{path.name} holds {len(frames)} frames, the fabric counts {count}")
    sample = set(rng.sample(range(len(frames)), min(SAMPLE, len(frames))))
    first: dict[int, int] = {}
    for number, frame in enumerate(frames):
        at = 42 if frame[12] == 8 else 62
        first.setdefault(frame[at] if len(frame) > at else -1, number)
    for number in sorted(sample | set(first.values())):
        if fault := fault_of(frames[number], port):
            raise CaptureError(f"{path.name}, frame {number}: {fault}; {frames[number].hex()}")
    return len(sample | set(first.values()))


def check_captures(prefix: Path, port: int, counts: list[int], rng: random.Random) -> int:
    """:func:`check_capture` of the sent frames of every plane, which are ``counts`` many."""
    return sum(check_capture(prefix.with_name(f"{prefix.name}{plane}_sent.pcap"), port, count, rng) for plane, count in enumerate(counts))
