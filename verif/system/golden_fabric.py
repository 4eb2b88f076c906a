"""Two golden endpoints over a fabric with the harness's faults: what :class:`verif.system.golden_native.GoldenNative` drives."""

from __future__ import annotations

from heapq import heappop, heappush
from struct import pack
from typing import Any, BinaryIO

from hdl.params import Params
from model.config import QpConfig
from model.spec import Command, Drop, Dscp, Ecn, Opcode, extension_bytes
from model.wire import build, ipv4_checksum, parse
from model.wire_packet import Packet
from verif.harness.native import LINK_COUNTERS
from verif.harness.stream import BAD, SAME, EventType
from verif.recorded import RecordedPair

SETTINGS = {"delay": 160, "jitter": 0, "drop": 0, "corrupt": 0, "duplicate": 0, "reorder": 0, "reorder_clocks": 2000, "mark": 0, "trim": 0,
            "trim_lasthop": 0, "trim_cut_lengths": 0}  # fmt: skip
_ETH, _BTH = 14, 12


class FabricPair(RecordedPair):
    """Endpoints A and B; frames are bytes on the way, and every fault of ``harness/fabric.cpp`` but the directed rules can hit them."""

    def __init__(self, params: Params, seed: int, memory_bytes: int) -> None:
        super().__init__(params, seed, memory_bytes=memory_bytes)
        self.settings = [[dict(SETTINGS) for _ in range(params.planes)] for _ in range(2)]  # by sender and plane
        self.count = [[dict.fromkeys(LINK_COUNTERS, 0) for _ in range(params.planes)] for _ in range(2)]
        self.link_up = [[True] * params.planes for _ in range(2)]
        self.way: list[tuple[int, int, int, int, int, bytes, bool, bool]] = []  # due, order, sender, plane, id, frame, same, bad
        self.order = 0
        self.last_due = [[0] * params.planes for _ in range(2)]
        self.errors: list[list[tuple[int, int, bool, bool]]] = [[], []]  # ranges of host memory that fail: low, high, read, write
        self.write_bytes, self.write_errors, self.read_errors = [0, 0], [0, 0], [0, 0]
        self.cq_poll = [True, True]
        self.files: list[BinaryIO] = []
        for nic, end in enumerate(self.ends):
            self._watch_memory(nic)
            # A QP that was never configured: the memories of hardware start with zeros.
            end.responder.config = [QpConfig.unpack(0) for _ in end.responder.config]
            for qp in end.requestor.qp:
                qp.config = QpConfig.unpack(0)

    # --- host memory ------------------------------------------------------------------------------------------------------------------
    def _watch_memory(self, nic: int) -> None:
        end: Any = self.ends[nic]
        offset, place, transmit = end._offset, end._place, end._transmit
        mode = ""

        def checked(address: int, length: int) -> int | None:
            for low, high, read, write in self.errors[nic]:
                if (read if mode == "read" else write and mode == "write") and address < high and low < address + length:
                    return None
            found: int | None = offset(address, length)
            return found

        def placed(index: int, address: int, payload: bytes, now: int) -> None:
            nonlocal mode
            mode = "write"
            if checked(address, len(payload)) is None:
                self.write_errors[nic] += 1
            else:
                self.write_bytes[nic] += len(payload)
            place(index, address, payload, now)
            mode = ""

        def transmitted(index: int, out: Any, now: int) -> None:
            nonlocal mode
            mode = "read"
            self.read_errors[nic] += checked(out.laddr, out.plen) is None
            transmit(index, out, now)
            mode = ""

        end._offset, end._place, end._transmit = checked, placed, transmitted

    # --- capture ----------------------------------------------------------------------------------------------------------------------
    def capture(self, prefix: str) -> None:
        """Starts files ``prefix``<plane>_sent.pcap; "" ends them."""
        for file in self.files:
            file.close()
        self.files = [open(f"{prefix}{plane}_sent.pcap", "wb") for plane in range(self.p.planes)] if prefix else []  # noqa: SIM115 - closed above
        for file in self.files:
            file.write(pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))

    # --- faults -----------------------------------------------------------------------------------------------------------------------
    def chance(self, ppm: int) -> bool:
        return ppm > 0 and self.rng.randrange(1_000_000) < ppm

    def link(self, nic: int, plane: int, up: bool) -> None:
        """The link of a port changes; the NIC sees it at once."""
        self.link_up[nic][plane] = up
        self.event(EventType.LINK, nic, plane, aux=int(up))
        self.ends[nic].command(Command.PORT, index=plane, config=int(up), now=self.now)

    def inject(self, nic: int, plane: int, frame: bytes, delay: int, bad: bool) -> None:
        """As Native.inject."""
        self.count[1 - nic][plane]["injected"] += 1
        self.frame += 1
        self._push(self.clock + delay, 1 - nic, plane, self.frame, frame, False, bad)

    def _push(self, due: int, sender: int, plane: int, number: int, frame: bytes, same: bool, bad: bool = False) -> None:
        self.order += 1
        heappush(self.way, (due, self.order, sender, plane, number, frame, same, bad))

    def _lose(self, sender: int, plane: int, number: int, cause: str) -> None:
        self.count[sender][plane][cause] += 1
        self.event(EventType.LOST, sender, plane, number=number)

    def _enter(self, nic: int, plane: int, packet: Packet) -> None:
        """A frame has left the NIC: its fate."""
        setting, count = self.settings[nic][plane], self.count[nic][plane]
        frame = build(packet, self.ends[nic].wire)
        self.frame += 1
        number = self.frame
        count["sent"] += 1
        if self.files:
            self.files[plane].write(pack("<IIII", 0, 8 * self.clock, len(frame), len(frame)) + frame)
        self.event(EventType.SENT, nic, plane, number=number, data=frame)
        if not (self.link_up[nic][plane] and self.link_up[1 - nic][plane]):
            return self._lose(nic, plane, number, "down")
        if self.chance(setting["drop"]):
            return self._lose(nic, plane, number, "dropped")
        sent = frame
        if self.chance(setting["mark"]) and packet.ecn in (Ecn.ECT0, Ecn.ECT1):
            frame = _traffic(frame, _traffic_of(frame) | Ecn.CE)
            count["marked"] += 1
        last_hop = False
        trim = self.chance(setting["trim"])
        if not trim and self.chance(setting["trim_lasthop"]):
            trim = last_hop = True
        trimmed = trim and Opcode.WRITE_FIRST <= packet.opcode <= Opcode.WRITE_ONLY_IMM
        if trimmed:
            frame = cut(frame, packet, Dscp.TRIMMED_LASTHOP if last_hop else Dscp.TRIMMED, bool(setting["trim_cut_lengths"]))
            count["trimmed"] += 1
        due = self.clock + setting["delay"] + self.rng.randint(0, setting["jitter"])
        if self.chance(setting["duplicate"]):
            count["duplicated"] += 1
            self._push(due + 1, nic, plane, number, frame, frame == sent)
        if not trimmed and self.chance(setting["corrupt"]):
            frame = self._flip(frame)
            count["corrupted"] += 1
        if self.chance(setting["reorder"]):
            due += self.rng.randint(1, setting["reorder_clocks"])
            count["reordered"] += 1
        else:
            self.last_due[nic][plane] = due = max(due, self.last_due[nic][plane])
        self._push(due, nic, plane, number, frame, frame == sent)

    def _flip(self, frame: bytes) -> bytes:
        """One flipped bit where the ICRC or the IPv4 checksum must notice it."""
        ipv4 = frame[12] == 8
        udp = _ETH + (20 if ipv4 else 40)
        masked = {udp + 6, udp + 7, udp + 12} | ({15, 22} if ipv4 else {14, 15, 16, 17, 21})
        at = self.rng.choice([i for i in range(_ETH, len(frame)) if i not in masked])
        return frame[:at] + bytes([frame[at] ^ 1 << self.rng.randrange(8)]) + frame[at + 1 :]

    # --- run --------------------------------------------------------------------------------------------------------------------------
    def _arrive(self, sender: int, plane: int, number: int, frame: bytes, same: bool, bad: bool) -> None:
        nic = 1 - sender
        if not (self.link_up[nic][plane] and self.link_up[sender][plane]):
            return self._lose(sender, plane, number, "down")
        self.count[sender][plane]["delivered"] += 1
        self.event(EventType.DELIVERED, nic, plane, (SAME if same else 0) | (BAD if bad else 0), number, data=b"" if same else frame)
        end = self.ends[nic]
        packet: Packet | Drop = Drop.BAD_FRAME if bad else parse(frame, end.wire)
        if isinstance(packet, Packet):
            self.rx = (plane, packet)
            end.receive(plane, packet, self.now)
        else:
            end.nic_drops[packet] += 1

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += 1
            self.clock = max(self.clock, self.now * self.p.tick_div)
            while self.way and self.way[0][0] <= self.clock:
                _, _, sender, plane, number, frame, same, bad = heappop(self.way)
                self._arrive(sender, plane, number, frame, same, bad)
            for nic, end in enumerate(self.ends):
                for plane, packet in end.run(self.now):
                    self._enter(nic, plane, packet)
                for completion in end.poll() if self.cq_poll[nic] else ():
                    self.event(EventType.COMPLETION, nic, 0, data=self._completion(completion))


def _traffic_of(frame: bytes) -> int:
    return frame[15] if frame[12] == 8 else (frame[14] & 15) << 4 | frame[15] >> 4


def _traffic(frame: bytes, value: int) -> bytes:
    """The frame with another traffic class, IPv4 checksum put right."""
    out = bytearray(frame)
    if frame[12] == 8:
        out[15], out[24:26] = value, b"\0\0"
        out[24:26] = ipv4_checksum(bytes(out[14:34])).to_bytes(2, "big")
    else:
        out[14], out[15] = out[14] & 0xF0 | value >> 4, (value & 15) << 4 | out[15] & 15
    return bytes(out)


def cut(frame: bytes, packet: Packet, dscp: int, cut_lengths: bool) -> bytes:
    """What a trimming switch makes of a data frame: headers only, another DSCP; ``cut_lengths``: length fields of what is left."""
    ip = 20 if packet.ipv4 else 40
    keep = _ETH + ip + 8 + _BTH + extension_bytes(packet.opcode, packet.ts)
    out = bytearray(frame[:keep])
    if cut_lengths:
        udp = keep - _ETH - ip
        out[_ETH + ip + 4 : _ETH + ip + 6] = udp.to_bytes(2, "big")
        at, value = (16, udp + 20) if packet.ipv4 else (18, udp)
        out[at : at + 2] = value.to_bytes(2, "big")
    return _traffic(bytes(out), dscp << 2 | packet.ecn)
