"""Frames in lockstep: every frame that leaves was asked for by a record, every record of a received frame has its frame.

One :class:`Wire` per NIC. Frames leave a plane in the order of their records (SEND and PROBE; EMIT_SACK and EMIT_NACK; EMIT_ACK), and reach an owner in the
order in which they were delivered on their plane. A frame may be missing only while its port is down.
"""

from __future__ import annotations

import mmap
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from model.config import GlobalConfig
from model.end_packets import Addresser, wire_config
from model.spec import BTH_BYTES, DATA_OPCODES, ETH_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES, Drop, Opcode
from model.wire import build, parse
from model.wire_packet import Packet, WireConfig
from verif.lockstep_error import Mismatch

FOREVER = 1 << 62
_IPV4_BTH = ETH_BYTES + IPV4_BYTES + UDP_BYTES
_IPV6_BTH = ETH_BYTES + IPV6_BYTES + UDP_BYTES
_SHORTEST = _IPV4_BTH + BTH_BYTES
FEEDBACK = frozenset({Opcode.SACK, Opcode.NACK, Opcode.ACK})
_PACKET_FIELDS = tuple(field.name for field in fields(Packet))


class Expected:
    """A frame that a record has asked for."""

    __slots__ = ("clock", "dead", "make", "name", "sent_tick", "tick")

    def __init__(self, clock: int, name: str, make: Callable[[int], Packet]) -> None:
        self.clock, self.name, self.make = clock, name, make
        self.tick: int | None = None  # timestamp that DEPART reported
        self.sent_tick: int | None = None  # timestamp in the frame
        self.dead = False  # DEPART said that it was lost inside the NIC


def packet_differences(ours: Packet, golden: Packet) -> list[tuple[str, object, object]]:
    """Fields in which two packets differ."""
    return [(name, getattr(ours, name), getattr(golden, name)) for name in _PACKET_FIELDS if getattr(ours, name) != getattr(golden, name)]


class Wire:
    """What one NIC sends and receives."""

    def __init__(self, planes: int, qpn_base: int, memory_bytes: int) -> None:
        self.planes, self.qpn_base = planes, qpn_base
        self.config: WireConfig | None = None  # until SET_GLOBAL every frame is dropped
        self.addresser: Addresser | None = None
        self.memory = mmap.mmap(-1, memory_bytes)  # golden copy of host memory; pages that nobody touches cost nothing
        self.pages: set[int] = set()  # of 4 KiB, that the golden NIC has written
        self.payload_bytes = 0
        # Per plane: data and probes; SACKs and NACKs; ACKs and NAKs, which wait for payload writes and may be overtaken.
        self.out: list[tuple[deque[Expected], ...]] = [(deque(), deque(), deque()) for _ in range(planes)]
        self.arrived: list[tuple[deque[tuple[int, Packet]], deque[tuple[int, Packet]]]] = [(deque(), deque()) for _ in range(planes)]
        self.departing: dict[tuple[int, ...], deque[Expected]] = {}
        self.down_until = [-1] * planes  # newest clock at which the port was, or may have been, down
        self.drops: Counter[Drop] = Counter()
        self.sent = self.delivered = self.lost_in_port = 0

    def configure(self, glob: GlobalConfig) -> None:
        """SET_GLOBAL was taken."""
        self.config = wire_config(glob) if glob.udp_port and glob.hop_limit else None
        self.addresser = Addresser(glob, self.qpn_base) if self.config else None

    # --- memory -----------------------------------------------------------------------------------------------------------------------
    def write(self, address: int, payload: bytes) -> None:
        """A payload lands in host memory. What lies outside it is an error of the bus, not of memory."""
        end = address + len(payload)
        self.payload_bytes += len(payload)
        if end <= len(self.memory):
            self.memory[address:end] = payload
            if payload:
                self.pages.update(range(address >> 12, (end - 1 >> 12) + 1))

    def payload(self, address: int, length: int) -> bytes:
        """Source bytes of a data packet; zeros outside of host memory, from where nothing can be sent."""
        return self.memory[address : address + length].ljust(length, b"\0")

    # --- ports ------------------------------------------------------------------------------------------------------------------------
    def link(self, plane: int, up: bool, clock: int) -> None:
        """The link or the port of a plane went down (``up`` false) or is up again."""
        self.down_until[plane] = clock if up and self.down_until[plane] == FOREVER else self.down_until[plane] if up else FOREVER

    # --- sending ----------------------------------------------------------------------------------------------------------------------
    def expect(self, plane: int, order: int, entry: Expected, key: tuple[int, ...] | None = None) -> None:
        """A record has asked for a frame; ``order``: which of the plane's queues; ``key``: what its DEPART will name."""
        self.out[plane][order].append(entry)
        if key is not None:
            self.departing.setdefault(key, deque()).append(entry)

    def depart(self, key: tuple[int, ...], tick: int, lost: bool) -> None:
        """A DEPART record."""
        waiting = self.departing.get(key)
        if not waiting:
            raise Mismatch("DEPART of a frame that nobody asked for, or twice: (QP, probe, PSN, EV index, send tick) = " + str(key))
        entry = waiting.popleft()
        if not waiting:
            del self.departing[key]
        entry.dead = lost
        entry.tick = tick
        if lost and entry.sent_tick is not None:
            raise Mismatch(f"DEPART says that {entry.name} was lost, but it was sent")
        if not lost and entry.sent_tick is not None and entry.sent_tick != tick:
            raise Mismatch(f"timestamp of {entry.name}", [("tx_timestamp", entry.sent_tick, tick)])

    def frame_sent(self, plane: int, frame: bytes) -> Packet:
        """A whole frame left: it must be the next that a record asked for, in every field and byte, with a right ICRC."""
        self.sent += 1
        if self.config is None or len(frame) < _SHORTEST:
            raise Mismatch(f"plane {plane}: a frame of {len(frame)} bytes was sent" + ("" if self.config else " before SET_GLOBAL"))
        bth = _IPV4_BTH if frame[12] == 0x08 else _IPV6_BTH
        opcode = frame[bth]
        order, tick = (0, int.from_bytes(frame[bth + 16 : bth + 18], "big")) if opcode in DATA_OPCODES else (2 if opcode == Opcode.ACK else 1, 0)
        if opcode == Opcode.PROBE:
            order, tick = 0, int.from_bytes(frame[bth + 24 : bth + 26], "big")
        queue = self.out[plane][order]
        while queue and queue[0].dead:
            queue.popleft()
        if not queue:
            raise Mismatch(f"plane {plane}: {self._what(frame)} was sent, but no record asked for it")
        while True:
            entry = queue[0]
            golden = entry.make(tick)
            if build(golden, self.config) == frame:
                break
            if entry.clock > self.down_until[plane] or len(queue) == 1:
                raise Mismatch(f"plane {plane}: {entry.name} as it was sent", self._frame_differences(frame, golden))
            queue.popleft()  # lost in the port when it was down
            self.lost_in_port += 1
        queue.popleft()
        if order == 0:
            if tick == 0:
                raise Mismatch(f"plane {plane}: {entry.name} carries the timestamp 0, which means none")
            if entry.tick is not None and entry.tick != tick:
                raise Mismatch(f"timestamp of {entry.name}", [("tx_timestamp", tick, entry.tick)])
            entry.sent_tick = tick
        return golden

    def _what(self, frame: bytes) -> str:
        packet = parse(frame, self.config or WireConfig())
        return describe(packet) if isinstance(packet, Packet) else f"a frame that the codec refuses ({packet.name}), {frame.hex()},"

    def _frame_differences(self, frame: bytes, golden: Packet) -> list[tuple[str, object, object]]:
        """Fields that differ; for what no field shows (reserved bits, checksums, ICRC) the bytes."""
        config = self.config or WireConfig()
        packet, wanted = parse(frame, config), build(golden, config)
        found = packet_differences(packet, golden) if isinstance(packet, Packet) else [("codec", packet.name, "accepted")]
        if not found or not isinstance(packet, Packet):
            at = next((i for i, (a, b) in enumerate(zip(frame, wanted)) if a != b), min(len(frame), len(wanted)))
            found += [(f"bytes from {at} on", frame[at : at + 16], wanted[at : at + 16]), ("length", len(frame), len(wanted))]
        return found

    # --- receiving --------------------------------------------------------------------------------------------------------------------
    def frame_arrived(self, plane: int, frame: bytes | Packet, clock: int, bad: bool) -> None:
        """A whole frame was delivered: it is dropped here, or an owner must show it."""
        self.delivered += 1
        packet: Packet | Drop
        if bad:
            packet = Drop.BAD_FRAME
        elif self.config is None:
            packet = Drop.UDP_PORT
        else:
            packet = frame if isinstance(frame, Packet) else parse(frame, self.config)
        if isinstance(packet, Packet):
            self.arrived[plane][0 if packet.opcode in FEEDBACK else 1].append((clock, packet))
        else:
            self.drops[packet] += 1

    def take(self, plane: int, owner: int, matches: Callable[[Packet], list[tuple[str, Any, Any]]], what: str) -> Packet:
        """The frame of a record: the oldest that was delivered on its plane for its owner. ``matches``: fields that differ."""
        if plane >= self.planes:
            raise Mismatch(f"{what} names plane {plane}, there are {self.planes}")
        queue = self.arrived[plane][owner]
        while queue:
            clock, packet = queue[0]
            differences = matches(packet)
            if not differences:
                queue.popleft()
                return packet
            if clock > self.down_until[plane] or len(queue) == 1:
                raise Mismatch(f"{what} beside the frame delivered at clock {clock} on plane {plane}, {describe(packet)}", differences)
            queue.popleft()
            self.drops[Drop.PORT_DOWN] += 1
        raise Mismatch(f"{what}, but no frame for this owner was delivered on plane {plane}")

    # --- end --------------------------------------------------------------------------------------------------------------------------
    def unfinished(self, clock: int) -> list[str]:
        """Frames that were asked for and did not leave, or arrived and were not shown. Those of ports that were down do not count."""
        found = []
        for plane in range(self.planes):
            down = self.down_until[plane]
            for queue in self.out[plane]:
                found += [f"plane {plane}: {e.name} of clock {e.clock} never left" for e in queue if not e.dead and e.clock > down]
            for arrivals in self.arrived[plane]:
                found += [f"plane {plane}: {describe(p)} of clock {c} was never shown" for c, p in arrivals if c > down]
        return found


def describe(packet: Packet) -> str:
    """A packet in a few words."""
    return f"{Opcode(packet.opcode).name} PSN {packet.psn:#x} for QP {packet.dest_qp:#x}" + (" (rtx)" if packet.rtx else "")
