"""Checks of the end of a run: what two NICs at rest count and have written, against the fabric, the golden NICs and scapy."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

from hdl.params import Params
from model.spec import Drop
from verif.harness.native import LINK_COUNTERS, LOSSES
from verif.system.captures import CaptureError, check_captures

A, B = 0, 1


class CheckError(AssertionError):
    """What a check of the environment found wrong."""


def links(native: Any, params: Params, counters: list[dict[str, int]]) -> None:
    """Every frame that entered a link has ended somewhere, and both NICs count what the fabric counts. ``counters``: registers of the NICs."""
    for nic in (A, B):
        for plane in range(params.planes):
            count = {name: native.counter(name, nic, plane) for name in LINK_COUNTERS}
            ended = count["delivered"] + sum(count[name] for name in LOSSES)
            entered = count["sent"] + count["duplicated"] + count["injected"]
            if entered != ended:
                raise CheckError(f"link from {'AB'[nic]}, plane {plane}: {entered} frames entered, {ended} ended: {count}")
            left = count["sent"] - count["bad"]
            if counters[nic][f"tx_frames{plane}"] != left:
                raise CheckError(f"NIC {'AB'[nic]}: tx_frames of plane {plane} is {counters[nic][f'tx_frames{plane}']}, the fabric counts {left}")
            if counters[1 - nic][f"rx_frames{plane}"] != count["delivered"]:
                raise CheckError(f"NIC {'AB'[1 - nic]}: rx_frames of plane {plane} is {counters[1 - nic][f'rx_frames{plane}']}, "
                                 f"the fabric has delivered {count['delivered']}")  # fmt: skip


def hardware(native: Any, summary: dict[str, Any], counters: list[dict[str, int]]) -> None:
    """Drop counters and host memory of the NICs against the golden ones (``summary`` of the lockstep)."""
    for nic in (A, B):
        drops = summary["drops"][nic]
        for cause in Drop:
            if cause == Drop.PORT_DOWN:
                continue  # which of the frames of a port that goes down are lost is the port's business
            name = cause.name.lower()
            if counters[nic][f"drop_{name}"] != drops.get(name, 0):
                raise CheckError(f"NIC {'AB'[nic]}: counter drop_{name} is {counters[nic][f'drop_{name}']}, the golden model counts {drops.get(name, 0)}")
        if native.counter("write_errors", nic):
            continue  # refused writes are not in memory
        written = native.counter("write_bytes", nic)
        if written != summary["payload_bytes"][nic]:
            raise CheckError(f"NIC {'AB'[nic]} wrote {written} bytes of host memory, accepted payload is {summary['payload_bytes'][nic]}")
        for page, checksum in summary["pages"][nic].items():
            if zlib.crc32(native.read(nic, page << 12, 4096)) != checksum:
                raise CheckError(f"NIC {'AB'[nic]}: host memory differs from the golden NIC's in the page at {page << 12:#x}")


def captures(native: Any, params: Params, prefix: Path, port: int, rng: random.Random) -> int:
    """The capture files hold the frames that left, and scapy finds a sample of them sound. Returns how many it looked at."""

    def left(plane: int) -> int:
        return sum(native.counter("sent", nic, plane) - native.counter("bad", nic, plane) for nic in (A, B))

    try:
        return check_captures(prefix, port, [left(plane) for plane in range(params.planes)], rng)
    except CaptureError as problem:
        raise CheckError(str(problem)) from problem
