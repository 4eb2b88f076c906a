"""What a directed scenario says happened: the commit records and frames of a run, and forged frames.

A :class:`Watch` keeps every record (decoded) and every frame that was sent or delivered (parsed) from its creation on. Nothing here judges: the
lockstep does. A scenario asks whether what it wanted to show was there:

    w = Watch(s)
    ...
    need(len(w.records(A, Kind.TIMEOUT)) == 4, "four expiries")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model.end_packets import wire_config
from model.serial import diff
from model.spec import DATA_OPCODES, Drop, Kind, Opcode, QpState
from model.wire import build, parse
from model.wire_packet import Packet, WireConfig
from verif.harness.stream import BAD, SAME, Event, EventType
from verif.records import Decoder, Words, member_of
from verif.system.env import CheckError, System

REQ, RSP = 0, 1
FEEDBACK = (int(Opcode.ACK), int(Opcode.NACK))  # range of opcodes: ACK, SACK, NACK (and endpoint requests, which nobody sends)


def need(condition: bool, what: str, found: object = "") -> None:
    """CheckError when what a scenario wants to show was not there."""
    if not condition:
        raise CheckError(f"the scenario wanted: {what}" + (f"; found: {found}" if found != "" else ""))


@dataclass(frozen=True)
class Record:
    """A commit record. ``body`` as decoded, with the extension headers of a received frame in ``body["rx"]["ext"]``."""

    nic: int
    owner: int
    kind: int
    qp: int
    tick: int
    clock: int
    body: dict[str, Any]
    words: Words


@dataclass(frozen=True)
class Frame:
    """A frame as it left ``nic``, or as it was delivered to ``nic``."""

    nic: int
    plane: int
    clock: int
    raw: bytes
    packet: Packet | Drop


class Watch:
    """Evidence of a run. One per scenario, made before the traffic."""

    def __init__(self, s: System, wire: WireConfig | None = None) -> None:
        self.s = s
        self.wire = wire or wire_config(s.glob(0))
        self.decoders = (Decoder(s.p, REQ), Decoder(s.p, RSP))
        self.all: list[Record] = []
        self.sent: list[Frame] = []
        self.delivered: list[Frame] = []
        self._by_id: dict[int, Frame] = {}
        s.watchers.append(self._event)

    def _event(self, event: Event) -> None:
        if event.type == EventType.RECORD:
            decoder = self.decoders[event.part]
            words = decoder.words(event.data)
            kind, qp, _, tick = decoder.head(words)
            body = decoder.body[kind](words)
            if "rx" in body:
                body["rx"]["ext"] = decoder.ext[f"{Kind(kind).name.lower()}.{member_of(body['rx']['opcode'])}"](words)
            self.all.append(Record(event.nic, event.part, kind, qp, tick, event.clock, body, words))
        elif event.type == EventType.SENT:
            frame = Frame(event.nic, event.part, event.clock, event.data, parse(event.data, self.wire))
            self.sent.append(frame)
            self._by_id[event.id] = frame
        elif event.type == EventType.DELIVERED and not event.flags & BAD:
            if event.flags & SAME:
                known = self._by_id.get(event.id)
                if known is None:
                    return  # sent before the watch began
                raw, packet = known.raw, known.packet
            else:
                raw, packet = event.data, parse(event.data, self.wire)
            self.delivered.append(Frame(event.nic, event.part, event.clock, raw, packet))

    # --- records ------------------------------------------------------------------------------------------------------------------------
    def records(self, nic: int, kind: Kind, qp: int | None = None, owner: int | None = None, **fields: Any) -> list[Record]:
        """Records of a kind whose body has these values; fields of a received frame and of an answer are named alone too."""

        def value(body: dict[str, Any], name: str) -> Any:
            for part in (body, body.get("answer") or {}, body.get("rx") or {}, (body.get("rx") or {}).get("ext") or {}):
                if name in part:
                    return part[name]
            raise ValueError(f"a record of {kind.name} has no field {name!r}")

        return [r for r in self.all if r.nic == nic and r.kind == kind and (qp is None or r.qp == qp) and (owner is None or r.owner == owner)
                and all(value(r.body, name) == want for name, want in fields.items())]  # fmt: skip

    def context(self, record: Record) -> dict[str, Any]:
        """State of the QP after a step."""
        state: dict[str, Any] = self.decoders[record.owner].state("ctx", record.words)
        return state

    def paths(self, record: Record) -> dict[str, Any]:
        """Path row of the QP after a step of the requestor."""
        state: dict[str, Any] = self.decoders[REQ].state("path", record.words)
        return state

    def now(self, nic: int, owner: int = REQ, qp: int = 0) -> Record:
        """The newest record of a QP."""
        return next(r for r in reversed(self.all) if (r.nic, r.owner, r.qp) == (nic, owner, qp) and r.kind != Kind.PORT)

    def state(self, nic: int, owner: int = REQ, qp: int = 0) -> QpState:
        """The QP's state after its newest record."""
        return QpState(self.context(self.now(nic, owner, qp))["state"])

    def row(self, nic: int, plane: int, qp: int = 0) -> dict[str, int]:
        """Bits of a plane's EVs after the requestor's newest record: active, good, skip, bad."""
        row: dict[str, int] = self.paths(self.now(nic, REQ, qp))["planes"][plane]
        return row

    # --- frames -------------------------------------------------------------------------------------------------------------------------
    def data(self, nic: int, qp: int | None = None, rtx: int | None = None) -> list[Frame]:
        """Data frames that left ``nic``; ``qp``: the sender's QP index."""
        other = None if qp is None else self.s.p.qpn_base + self.s.peer[nic, qp][1]
        return [f for f in self.sent if f.nic == nic and isinstance(f.packet, Packet) and f.packet.opcode in DATA_OPCODES
                and (other is None or f.packet.dest_qp == other) and (rtx is None or f.packet.rtx == rtx)]  # fmt: skip

    def packets(self, nic: int, opcode: Opcode, **fields: int) -> list[Packet]:
        """Packets of an opcode that left ``nic``, with these fields."""
        return [f.packet for f in self.sent if f.nic == nic and isinstance(f.packet, Packet) and f.packet.opcode == opcode
                and all(getattr(f.packet, name) == value for name, value in fields.items())]  # fmt: skip

    # --- time ---------------------------------------------------------------------------------------------------------------------------
    async def until(self, condition: Callable[[], bool], what: str, clocks: int = 200_000, grain: int = 200) -> None:
        """Until ``condition`` holds, looked at every ``grain`` clocks; CheckError after ``clocks``."""
        limit = self.s.clock + clocks
        while not condition():
            if self.s.clock >= limit:
                raise CheckError(f"clock {self.s.clock}: {what} has not come within {clocks} clocks")
            await self.s.step(grain)

    async def rest(self, clocks: int = 1500) -> None:
        """Until commands are answered and nothing moves."""
        await self.s.settle()
        await self.s.quiet(clocks)


    async def recovered(self, clocks: int = 200_000) -> None:
        """Until probes have brought back every EV of every connected QP: before, probes go on for ever and nothing rests."""

        def good() -> bool:
            newest = {(r.nic, r.qp): r for r in self.all if r.owner == REQ and r.kind != Kind.PORT}
            return not any(row["bad"] for at, r in newest.items() if at in self.s.peer and self.context(r)["state"] == QpState.RTS
                           for row in self.paths(r)["planes"])  # fmt: skip

        await self.until(good, "the return of every EV", clocks)


def forge(s: System, to: int, opcode: Opcode, qp: int = 0, plane: int = 0, delay: int = 0, **fields: Any) -> Packet:
    """Delivers a packet to ``to`` as if its peer's QP had sent it; ``qp``: index at the receiver. Returns the packet."""
    packet = Packet(opcode=opcode, src_ip=s.ip(1 - to) + plane, dst_ip=s.ip(to) + plane, smac=s.mac(1 - to) + plane, dmac=s.mac(to) + plane,
                    dest_qp=s.p.qpn_base + qp, **fields)  # fmt: skip
    s.native.inject(to, plane, build(packet), delay)
    return packet


def nack(s: System, to: int, frame: Frame, reason: int, delay: int = 0, **fields: int) -> Packet:
    """A NACK for a data frame that ``to`` has sent, as its peer would write it."""
    data = frame.packet
    if not isinstance(data, Packet):
        raise ValueError(f"a NACK needs a packet, not {data!r}")
    qp = next(index for (nic, index), (_, other) in s.peer.items() if nic == to and s.p.qpn_base + other == data.dest_qp)
    known = {"psn": data.psn, "nack_psn": data.psn, "nack_reason": reason, "entropy": data.ev, "echo_timestamp": data.tx_timestamp, "ev": data.ev}
    return forge(s, to, Opcode.NACK, qp, frame.plane, delay, **(known | fields))


def after(psn: int, count: int) -> int:
    """PSN ``count`` later."""
    return psn + count & 0xFFFFFF


__all__ = ["FEEDBACK", "REQ", "RSP", "Frame", "Record", "Watch", "after", "diff", "forge", "nack", "need"]
