"""The fabric of the harness (verif/harness/fabric.cpp) in Python, between two golden endpoints: same faults, rules, counters and events.

Bytes become time here too: a link carries one beat of ``port_width`` per clock, and an endpoint may send on a plane only while less than
FIFO_BYTES wait there, so that windows, stalls and the rotation of planes look as they do in hardware. QPs that have work take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from struct import pack
from typing import Any, BinaryIO

from hdl.params import Params
from model.config import QpConfig
from model.spec import DATA_OPCODES, Drop, Opcode, QpState, extension_bytes
from model.wire import build, ipv4_checksum, parse
from model.wire_packet import Packet
from verif.harness.native import LINK_COUNTERS
from verif.harness.stream import SAME, EventType
from verif.recorded import RecordedPair

FIFO_BYTES = 9000  # what may wait in a plane's frame FIFO: two frames of the largest MTU
SETTINGS = {"delay": 100, "jitter": 0, "drop": 0, "corrupt": 0, "duplicate": 0, "reorder": 0, "reorder_clocks": 500, "mark": 0, "trim": 0,
            "trim_lasthop": 0, "trim_cut_lengths": 0, "tx_period": 1}  # fmt: skip
_OVERHEAD = 14 + 40 + 8 + 12 + 24 + 4  # headers and ICRC of a data frame
_CE = 3
_UNCHECKED6, _UNCHECKED4 = (14, 15, 16, 17, 21), (15, 22)  # bytes of the IP header that the ICRC leaves out


@dataclass
class Rule:
    """As in fabric.h; None matches everything."""

    action: str
    nic: int | None
    plane: int | None
    low: int
    high: int
    rtx: int | None
    qp: int | None
    psn: int | None
    ev: int | None
    skip: int
    count: int | None
    argument: int
    active: bool = True
    seen: int = 0
    hits: int = 0

    def hit(self, nic: int, plane: int, packet: Packet) -> bool:
        """Whether the rule acts on this frame; counts it."""
        pairs = ((self.nic, nic), (self.plane, plane), (self.rtx, packet.rtx), (self.qp, packet.dest_qp), (self.psn, packet.psn), (self.ev, packet.ev))
        if not self.active or not self.low <= packet.opcode <= self.high or any(want is not None and want != found for want, found in pairs):
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.count is not None and self.hits >= self.count):
            return False
        self.hits += 1
        return True


class FabricPair(RecordedPair):
    """Two golden endpoints with the harness's fabric between them. Links are named by their sender."""

    def __init__(self, params: Params, seed: int, memory_bytes: int) -> None:
        super().__init__(params, seed, memory_bytes=memory_bytes)
        self.settings = [[dict(SETTINGS) for _ in range(params.planes)] for _ in range(2)]
        self.counts = [[dict.fromkeys(LINK_COUNTERS, 0) for _ in range(params.planes)] for _ in range(2)]
        self.rules: list[Rule] = []
        self.link_up = [[True] * params.planes for _ in range(2)]
        self.admin = [(1 << params.planes) - 1] * 2
        self.free_at = [[0] * params.planes for _ in range(2)]  # clock at which a plane has sent what waits
        self.fifo_at = [[0] * params.planes for _ in range(2)]  # the same of data alone, known within the tick
        self.last_due = [[0] * params.planes for _ in range(2)]
        self.queue: list[tuple[int, int, int, int, int, bytes, Packet | None, bool]] = []
        self.order = 0
        self.active = False  # something moved in the newest tick
        self.errors: list[list[tuple[int, int, bool, bool]]] = [[], []]  # ranges of host memory that fail: low, high, read, write
        self.write_bytes, self.write_errors, self.read_errors = [0, 0], [0, 0], [0, 0]
        self.cq_poll = [True, True]
        self.files: list[BinaryIO] = []
        for nic, end in enumerate(self.ends):
            self._pace(nic)
            self._watch_memory(nic)
            # A QP that was never configured: the memories of hardware start with zeros.
            end.responder.config = [QpConfig.unpack(0) for _ in end.responder.config]
            for qp in end.requestor.qp:
                qp.config = QpConfig.unpack(0)

    def _pace(self, nic: int) -> None:
        """A plane offers room while its FIFO is not full; QPs with work send in turn."""
        requestor: Any = self.ends[nic].requestor
        for name in ("try_send", "probe"):
            inner = getattr(requestor, name)

            def paced(qp: int, *args: Any, inner: Any = inner, name: str = name) -> Any:
                if name == "probe":
                    return inner(qp, *args)
                now, room = args[0], args[1]
                busy = [i for i, state in enumerate(requestor.qp) if state.state == QpState.RTS and not state.idle]
                if busy and qp in busy and busy[now % len(busy)] != qp:
                    return None
                room &= sum(1 << plane for plane in range(self.p.planes) if self._waiting(nic, plane) < FIFO_BYTES)
                out = inner(qp, now, room, *args[2:]) if room else None
                if out is not None:
                    self._occupy(self.fifo_at, nic, out.plane, out.plen + _OVERHEAD)
                return out

            setattr(requestor, name, paced)

    def _waiting(self, nic: int, plane: int) -> int:
        period = max(1, self.settings[nic][plane]["tx_period"])
        return max(0, self.fifo_at[nic][plane] - self.now * self.p.tick_div) * self.p.port_width // 8 // period

    def _occupy(self, until: list[list[int]], nic: int, plane: int, size: int) -> None:
        beats = -(-size * 8 // self.p.port_width) * max(1, self.settings[nic][plane]["tx_period"])
        until[nic][plane] = max(self.now * self.p.tick_div, until[nic][plane]) + beats

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

    # --- ports --------------------------------------------------------------------------------------------------------------------------
    def link(self, nic: int, plane: int, up: bool) -> None:
        """The link status of one end changes."""
        self.link_up[nic][plane] = up
        self.event(EventType.LINK, nic, plane, aux=int(up))
        self._ports(nic)

    def port(self, nic: int, plane: int, up: bool) -> None:
        """The host changes the administrative state of a port."""
        self.admin[nic] = self.admin[nic] & ~(1 << plane) | up << plane
        self._ports(nic)

    def _ports(self, nic: int) -> None:
        end = self.ends[nic]
        end.up = self.admin[nic] & sum(1 << plane for plane in range(self.p.planes) if self.link_up[nic][plane])
        end.requestor.port(end.up, self.now)
        end.responder.port(self.now, end.up)

    # --- frames -------------------------------------------------------------------------------------------------------------------------
    def _chance(self, ppm: int) -> bool:
        return ppm > 0 and self.rng.randrange(1_000_000) < ppm

    def _lose(self, nic: int, plane: int, number: int, cause: str) -> None:
        self.counts[nic][plane][cause] += 1
        self.event(EventType.LOST, nic, plane, number=number, aux=LINK_COUNTERS.index(cause))

    def _push(self, due: int, nic: int, plane: int, number: int, frame: bytes, packet: Packet | None, bad: bool = False) -> None:
        """``packet``: what the bytes are, when the link did not change them."""
        self.order += 1
        heappush(self.queue, (due, self.order, nic, plane, number, frame, packet, bad))  # order is unique: nothing behind it is compared

    def inject(self, to: int, plane: int, frame: bytes, delay: int, bad: bool) -> None:
        """A frame from nowhere."""
        self.frame += 1
        self.counts[1 - to][plane]["injected"] += 1
        self._push(self.clock + delay, 1 - to, plane, self.frame, frame, None, bad)

    def _enter(self, nic: int, plane: int, packet: Packet) -> None:
        self.frame += 1
        number, settings, counts = self.frame, self.settings[nic][plane], self.counts[nic][plane]
        frame = build(packet, self.ends[nic].wire)
        counts["sent"] += 1
        self._occupy(self.free_at, nic, plane, len(frame))
        if self.files:
            self.files[plane].write(pack("<IIII", 0, 8 * self.clock, len(frame), len(frame)) + frame)
        self.event(EventType.SENT, nic, plane, number=number, data=frame)
        if not self.link_up[nic][plane] or not self.link_up[1 - nic][plane]:
            return self._lose(nic, plane, number, "down")
        extra, again = 0, -1
        marked = trimmed = corrupted = lasthop = False
        bit = -1
        for rule in self.rules:
            if not rule.hit(nic, plane, packet):
                continue
            if rule.action in ("drop", "blackhole"):
                return self._lose(nic, plane, number, "directed_drop" if rule.action == "drop" else "blackhole")
            if rule.action == "delay":
                extra += rule.argument
            elif rule.action == "corrupt":
                corrupted, bit = True, rule.argument
            elif rule.action == "duplicate":
                again = rule.argument
            elif rule.action == "mark":
                marked = True
            else:
                trimmed, lasthop = True, lasthop or rule.action == "trim_lasthop"
        if self._chance(settings["drop"]):
            return self._lose(nic, plane, number, "dropped")
        changed = frame
        if (marked or self._chance(settings["mark"])) and packet.ecn not in (0, _CE):
            changed = _traffic(changed, packet, _CE, None)
            counts["marked"] += 1
        if not trimmed and self._chance(settings["trim"]):
            trimmed = True
        if not trimmed and self._chance(settings["trim_lasthop"]):
            trimmed = lasthop = True
        if trimmed and packet.opcode in DATA_OPCODES and packet.payload:
            glob = self.ends[nic].responder.glob
            changed = _trim(changed, packet, glob.dscp_trimmed_lasthop if lasthop else glob.dscp_trimmed, bool(settings["trim_cut_lengths"]))
            counts["trimmed"] += 1
        else:
            trimmed = False
        start = self.free_at[nic][plane] + settings["delay"]
        same = packet if changed is frame else None
        if again >= 0 or self._chance(settings["duplicate"]):
            counts["duplicated"] += 1
            self._push(start + self.rng.randint(0, settings["jitter"]) + max(0, again) + 1, nic, plane, number, changed, same)
        if not trimmed and (corrupted or self._chance(settings["corrupt"])):
            changed, same = self._corrupt(changed, packet, bit), None
            counts["corrupted"] += 1
        due = start + self.rng.randint(0, settings["jitter"])
        if extra:
            counts["delayed"] += 1
            due += extra
        elif self._chance(settings["reorder"]):
            counts["reordered"] += 1
            due += self.rng.randint(1, settings["reorder_clocks"])
        else:
            due = self.last_due[nic][plane] = max(due, self.last_due[nic][plane])
        return self._push(due, nic, plane, number, changed, same)

    def _corrupt(self, frame: bytes, packet: Packet, bit: int) -> bytes:
        out = bytearray(frame)
        if bit >= 0:
            out[bit // 8 % len(out)] ^= 1 << bit % 8
            return bytes(out)
        udp = 34 if packet.ipv4 else 54
        free = {udp + 6, udp + 7, udp + 12, *(_UNCHECKED4 if packet.ipv4 else _UNCHECKED6)}
        at = self.rng.choice([i for i in range(14, len(out)) if i not in free])
        out[at] ^= 1 << self.rng.randrange(8)
        return bytes(out)

    # --- run ----------------------------------------------------------------------------------------------------------------------------
    def run(self, ticks: int) -> None:
        """Both endpoints for some ticks."""
        for _ in range(ticks):
            self.now += 1
            before = len(self.chunks)
            self.clock = max(self.clock, self.now * self.p.tick_div)
            while self.queue and self.queue[0][0] <= self.clock:
                _, _, nic, plane, number, frame, packet, bad = heappop(self.queue)
                if not self.link_up[nic][plane] or not self.link_up[1 - nic][plane]:
                    self._lose(nic, plane, number, "down")
                else:
                    self._deliver(nic, plane, number, frame, packet, bad)
            for nic, end in enumerate(self.ends):
                for plane, leaving in end.run(self.now):
                    self._enter(nic, plane, leaving)
                for completion in end.poll() if self.cq_poll[nic] else ():
                    self.event(EventType.COMPLETION, nic, 0, data=self._completion(completion))
            self.active = len(self.chunks) != before or bool(self.queue)

    def _deliver(self, nic: int, plane: int, number: int, frame: bytes, packet: Packet | None, bad: bool) -> None:
        self.counts[nic][plane]["delivered"] += 1
        end = self.ends[1 - nic]
        self.event(EventType.DELIVERED, 1 - nic, plane, (SAME if packet else 0) | (2 if bad else 0), number, data=b"" if packet else frame)
        if bad:
            end.nic_drops[Drop.BAD_FRAME] += 1
            return
        read = packet or parse(frame, end.wire)
        if isinstance(read, Packet):
            self.rx = (plane, read)
        end.receive(plane, read if isinstance(read, Packet) else frame, self.now)


def _traffic(frame: bytes, packet: Packet, ecn: int | None, dscp: int | None) -> bytes:
    """The frame with other bits in its traffic class."""
    out = bytearray(frame)
    old = out[15] if packet.ipv4 else (out[14] & 15) << 4 | out[15] >> 4
    new = (old >> 2 if dscp is None else dscp) << 2 | (old & 3 if ecn is None else ecn)
    if packet.ipv4:
        out[15] = new
        out[24:26] = b"\0\0"
        out[24:26] = ipv4_checksum(bytes(out[14:34])).to_bytes(2, "big")
    else:
        out[14], out[15] = out[14] & 0xF0 | new >> 4, (new & 15) << 4 | out[15] & 15
    return bytes(out)


def _trim(frame: bytes, packet: Packet, dscp: int, cut_lengths: bool) -> bytes:
    udp = 34 if packet.ipv4 else 54
    out = bytearray(frame[: udp + 8 + 12 + extension_bytes(Opcode(packet.opcode), packet.ts)])
    if cut_lengths:
        length = len(out) - udp
        out[udp + 4 : udp + 6] = length.to_bytes(2, "big")
        at, total = (16, length + 20) if packet.ipv4 else (18, length)
        out[at : at + 2] = total.to_bytes(2, "big")
    return _traffic(bytes(out), packet, None, dscp)

