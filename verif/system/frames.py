"""Frames that no NIC would send, and the count of what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hdl.host import regmap
from model.spec import Command, Drop, Dscp, Ecn, Opcode, QpState
from model.wire import build, icrc, ipv4_checksum
from model.wire_packet import Packet
from verif.system.env import GUARD_BYTE, RKEY, A, B, CheckError, System

ETH, BTH = 14, 12  # bytes
STRANGE_EV = 0x7777_1234  # an entropy value that no QP has
VICTIM = 4096  # bytes of the buffer that bad frames aim at


def udp_at(frame: bytes) -> int:
    """Where the UDP header of a frame starts."""
    return ETH + (20 if frame[12] == 8 else 40)


def bth_at(frame: bytes) -> int:
    """Where the BTH of a frame starts."""
    return udp_at(frame) + 8


def put(frame: bytes, at: int, value: int, size: int = 1) -> bytes:
    """The frame with ``size`` bytes from ``at`` on replaced; checksums stay as they are."""
    return frame[:at] + value.to_bytes(size, "big") + frame[at + size :]


def flip(frame: bytes, at: int, bit: int = 0) -> bytes:
    """The frame with one bit inverted."""
    return put(frame, at, frame[at] ^ 1 << bit)


def seal(frame: bytes) -> bytes:
    """The frame with the right IPv4 checksum and, in its last 4 bytes, the right ICRC."""
    if frame[12] == 8:
        frame = put(frame, 24, 0, 2)
        frame = put(frame, 24, ipv4_checksum(frame[ETH:34]), 2)
    return frame[:-4] + icrc(frame[ETH:-4]).to_bytes(4, "little")


def relength(frame: bytes) -> bytes:
    """The frame with the length fields of IP and UDP that fit what is there, sealed when that is possible."""
    at = udp_at(frame)
    frame = put(frame, at + 4, len(frame) - at, 2)
    frame = put(frame, 16, len(frame) - ETH, 2) if frame[12] == 8 else put(frame, 18, len(frame) - at, 2)
    if len(frame) >= at + 8 + BTH + 4:
        return seal(frame)
    return put(frame, 24, ipv4_checksum(put(frame, 24, 0, 2)[ETH:34]), 2) if frame[12] == 8 else frame


class Intruder:
    """Sends bad frames to one NIC in its peer's name, and knows what both NICs must have counted since reset.

    ``wanted[nic][cause]`` is exact: :meth:`check` compares every counter. ``victim`` is the buffer that data frames aim at: nothing may be
    written there.
    """

    def __init__(self, s: System, nic: int = B) -> None:
        self.s, self.nic = s, nic
        self.victim = s.target(nic, VICTIM)
        self.wanted: tuple[Counter[Drop], Counter[Drop]] = (Counter(), Counter())
        self.sent = 0

    def packet(self, opcode: int = Opcode.WRITE_ONLY, qp: int = 0, plane: int = 0, ipv4: bool = False, **fields: Any) -> Packet:
        """A sound packet of the peer's QP, aimed at the victim; for anything but data without payload."""
        s, nic = self.s, self.nic
        data = Opcode.WRITE_FIRST <= opcode <= Opcode.WRITE_ONLY_IMM
        known: dict[str, Any] = {
            "opcode": int(opcode), "smac": s.mac(1 - nic) + plane, "dmac": s.mac(nic) + plane, "ipv4": ipv4, "src_ip": s.ip(1 - nic, ipv4) + plane,
            "dst_ip": s.ip(nic, ipv4) + plane, "dest_qp": s.p.qpn_base + qp, "ev": STRANGE_EV & (0xFFFF if ipv4 else 0xFFFF_FFFF),
            "dscp": int(Dscp.TRIMMABLE if data or opcode == Opcode.PROBE else Dscp.CONTROL), "ecn": int(Ecn.ECT0 if data else Ecn.NOT_ECT),
        }  # fmt: skip
        if data:
            payload = fields.get("payload", bytes(range(37)))
            known |= {"ts": 1, "tx_timestamp": 0x1234, "va": self.victim, "rkey": RKEY + 256 * nic, "payload": payload, "dmalen": len(payload)}
        if opcode == Opcode.PROBE:
            known |= {"probe_id": 0x4321, "tx_timestamp": 0x1234}
        if opcode == Opcode.ACK:
            known |= {"syndrome": 0x1F}
        if opcode == Opcode.NACK:
            known |= {"nack_reason": 1, "nack_psn": fields.get("psn", 0)}
        if opcode in (Opcode.SACK, Opcode.NACK):
            known["entropy"] = STRANGE_EV
        return Packet(**(known | fields))

    def frame(self, opcode: int = Opcode.WRITE_ONLY, **fields: Any) -> bytes:
        """The frame of :meth:`packet`."""
        return build(self.packet(opcode, **fields), self.s.wire)

    def send(self, frame: bytes | Packet, cause: Drop | None, peer: Drop | None = None, bad: bool = False, delay: int = 0) -> None:
        """Injects a frame, on the planes in turn. ``cause``: what its NIC counts, ``peer``: what the other counts for the answer."""
        raw = build(frame, self.s.wire) if isinstance(frame, Packet) else frame
        self.s.native.inject(self.nic, self.sent % self.s.p.planes, raw, delay, bad)
        self.sent += 1
        self.expect(cause, peer)

    def expect(self, cause: Drop | None, peer: Drop | None = None, count: int = 1) -> None:
        """What the NIC and its peer count without a frame of ours."""
        for nic, what in ((self.nic, cause), (1 - self.nic, peer)):
            if what is not None:
                self.wanted[nic][what] += count

    async def check(self, ignore: Iterable[Drop] = (), quiet: int = 1200) -> None:
        """At rest, every drop counter of both NICs is as expected, and the victim untouched. ``ignore``: causes that traffic brings."""
        await self.s.quiet(quiet)
        for nic in (A, B):
            counts = await self.s.read_all(nic, [regmap.COUNTER_BASE + 4 * cause for cause in Drop])
            for cause, found in zip(Drop, counts, strict=True):
                if found != self.wanted[nic][cause] and cause not in ignore:
                    self.s.first_difference()
                    raise CheckError(f"NIC {'AB'[nic]} counts {found} x {cause.name}, {self.wanted[nic][cause]} were sent or caused")
        self.untouched()

    def untouched(self) -> None:
        """The victim still holds nothing but guard bytes."""
        found = self.s.native.read(self.nic, self.victim, VICTIM)
        if found != bytes([GUARD_BYTE]) * VICTIM:
            at = next(i for i in range(VICTIM) if found[i] != GUARD_BYTE)
            raise CheckError(f"a bad frame was written: byte {at} of the victim is {found[at]:#x}")


async def good(s: System, qp: int = 0, length: int = 64) -> None:
    """The next good frames work, in both directions."""
    for nic in (A, B):
        s.write(nic, length, qp)
    await s.done()


async def restart(s: System, qp: int = 0, **config: int) -> None:
    """Both ends of the connection go to RESET, whatever their state, and connect again."""
    peers = ((A, qp), s.peer[A, qp])
    for nic, index in peers:
        s.queue(nic, Command.MODIFY, index, data=int(QpState.RESET))
        for waiting in (s.sends, s.receives, s.imms):
            waiting.pop((nic, index), None)  # type: ignore[attr-defined]
    await s.settle()
    await s.connect(qp, peers[1][1], **config)
