"""Two golden endpoints that leave the event stream of hardware: records, frames, memory. What the lockstep is tested with, before and beside RTL."""

from __future__ import annotations

import dataclasses
import random
from struct import pack
from typing import Any

from hdl.params import Params
from hdl.trace import TraceLayouts
from model.config import Config, EvConfig, GlobalConfig, QpConfig
from model.endpoint import Completion, Endpoint
from model.spec import Command, Kind, Opcode
from model.wire import build
from model.wire_packet import Packet
from verif.harness.stream import SAME, EventType
from verif.lockstep_side import sizes_of
from verif.records import member_of

_FEEDBACK = {Opcode.SACK: "sack", Opcode.NACK: "nack", Opcode.ACK: "ack"}


def _fields(value: Any) -> Any:
    if isinstance(value, list):
        return [_fields(item) for item in value]
    return {f.name: _fields(getattr(value, f.name)) for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else value


class RecordedPair:
    """Endpoints A and B over a link of one tick. :attr:`chunks` is the stream; ``lose`` decides which frames the link loses."""

    def __init__(self, params: Params, seed: int, loss: float = 0.0, memory_bytes: int = 1 << 20) -> None:
        self.p, self.rng, self.loss = params, random.Random(seed), loss
        self.layouts = TraceLayouts(params)
        self.chunks: list[bytes] = []
        self.clock = 0
        self.frame = 0
        self.seq = {(nic, owner): 0 for nic in (0, 1) for owner in (0, 1)}
        self.now = 0
        self.rx: tuple[int, Packet] | None = None
        self.sent = [[0] * params.planes for _ in range(2)]
        self.lost = [[0] * params.planes for _ in range(2)]
        self.delivered = [[0] * params.planes for _ in range(2)]  # by sender
        self.flight: list[tuple[int, int, int, Packet]] = []
        globs = [GlobalConfig(local_ip6=self.ip(nic), local_mac=0x02_00_00_00_00_10 + 0x100 * nic, sack_threshold=4096) for nic in (0, 1)]
        self.ends = [Endpoint(sizes_of(params), glob, memory_size=memory_bytes) for glob in globs]
        for nic in (0, 1):
            self._wrap(nic)
        for nic, end in enumerate(self.ends):
            end.requestor.port((1 << params.planes) - 1, 0)
            end.responder.port(0, (1 << params.planes) - 1)
            end.command(Command.SET_GLOBAL, config=globs[nic])

    @staticmethod
    def ip(nic: int) -> int:
        return 0x2001_0DB8 << 96 | (nic + 1) << 16 | 0x10

    def connect(self, qp: int, sq_psn: int, **config: Any) -> None:
        """QP index ``qp`` of A and B become each other's peers."""
        for nic, end in enumerate(self.ends):
            psns = (sq_psn, sq_psn + 1000 & 0xFFFFFF)
            parameters = QpConfig(
                dest_qpn=self.p.qpn_base + qp, peer_ip=self.ip(1 - nic), peer_mac=0x02_00_00_00_00_10 + 0x100 * (1 - nic), mtu=0,
                sq_psn=psns[nic], rq_psn=psns[1 - nic], **config)  # fmt: skip
            evs = [EvConfig(0x1000_0000 + (i << 8) + nic, 1, 0) for i in range(self.p.planes * self.p.evs)]
            end.configure_qp(qp, parameters, evs, self.now)

    # --- events -----------------------------------------------------------------------------------------------------------------------
    def event(self, kind: EventType, nic: int, part: int, flags: int = 0, number: int = 0, aux: int = 0, data: bytes = b"") -> None:
        self.clock += 1
        self.chunks.append(pack("<BBBBIQQQ", kind, nic, part, flags, len(data), self.clock, number, aux) + data + bytes(-len(data) % 8))

    def write(self, nic: int, address: int, data: bytes) -> None:
        self.ends[nic].write_memory(address, data)
        self.event(EventType.MEMORY, nic, 0, aux=address, data=data)

    def _emit(self, nic: int, owner: int, kind: Kind, qp: int, now: int, body: dict[str, Any]) -> None:
        layout = (self.layouts.req, self.layouts.rsp)[owner]
        bodies = (self.layouts.req_bodies, self.layouts.rsp_bodies)[owner]
        shape = bodies[kind.name.lower()]
        known = {name: value for name, value in body.items() if name in dict(shape)}
        end = self.ends[nic]
        state = end.requestor.qp[qp] if owner == 0 else end.responder.qp[qp]
        ctx = {name: _fields(getattr(state, name)) for name, _ in (self.layouts.l.req_ctx, self.layouts.l.rsp_ctx)[owner]}
        record: dict[str, Any] = {
            "kind": kind,
            "qp": qp,
            "seq": self.seq[nic, owner],
            "tick": now & 0xFFFFFFFF,
            "body": {kind.name.lower(): known},
            "ctx": ctx,
        }
        if owner == 0:
            path = _fields(state.path)
            path.pop("evs")
            record["path"] = path
        self.seq[nic, owner] += 1
        bits = layout.const(record).as_value().value & (1 << layout.size) - 1
        self.event(EventType.RECORD, nic, owner, data=bits.to_bytes((layout.size + 31) // 32 * 4, "little"))

    def _shown(self, index: int, known: int, addr_ok: int, pkey_ok: int) -> dict[str, Any]:
        assert self.rx is not None
        plane, packet = self.rx
        member = member_of(packet.opcode)
        names = [name for name, _ in self.layouts.l.ext[member].shape]
        ext = {name: getattr(packet, name) for name in names if hasattr(packet, name)}
        if packet.pr:
            ext["ack_psn_offset"] = packet.probe_id - (packet.probe_id >> 15 << 16)
        return {"rx": {"qp": index, "known": known, "addr_ok": addr_ok, "pkey_ok": pkey_ok, "plane": plane, "trimmed": packet.trimmed,
                       "ce": int(packet.ecn == 3), "ev": packet.ev, "udp_len": packet.udp_len, "opcode": packet.opcode, "a": packet.a,
                       "rtx": packet.rtx, "ts": packet.ts, "psn": packet.psn, "plen": len(packet.payload), "ext": {member: ext}}}  # fmt: skip

    def _wrap(self, nic: int) -> None:
        end = self.ends[nic]
        req: Any = end.requestor
        rsp: Any = end.responder

        def wrap(owner: int, name: str, kind: Kind, where: Any) -> None:
            target = (req, rsp)[owner]
            original = getattr(target, name)

            def method(*args: Any, **kwargs: Any) -> Any:
                qp, now, inputs = where(*args, **kwargs)
                out = original(*args, **kwargs)
                if out is not None:
                    self._emit(nic, owner, kind, qp, now, inputs | _fields(out))
                return out

            setattr(target, name, method)

        def data_of(config: Any) -> int:
            return config.pack() if isinstance(config, Config) else int(config)

        wrap(0, "control", Kind.CONTROL, lambda op, qp, index, data, now: (qp, now, {"op": op, "index": index, "data": data_of(data)}))
        wrap(0, "port", Kind.PORT, lambda up, now: (0, now, {}))
        wrap(0, "qp_error", Kind.QP_ERROR, lambda qp, cause, msg, now: (qp, now, {}))
        wrap(0, "post", Kind.POST, lambda qp, wr, now: (qp, now, {"wr": wr.pack()}))
        wrap(0, "try_send", Kind.SEND, lambda qp, now, room, a=None: (qp, now, {"room": room}))
        wrap(
            0,
            "depart",
            Kind.DEPART,
            lambda qp, probe, psn, evi, send_tick, tick, dropped, read_error, now: (
                qp,
                now,
                {
                    "probe": probe,
                    "psn": psn,
                    "evi": evi,
                    "send_tick": send_tick,
                    "tick": tick,
                    "dropped": dropped,
                    "read_error": read_error,
                },
            ),
        )
        for name in _FEEDBACK.values():
            wrap(
                0,
                name,
                Kind[name.upper()],
                lambda qp, fields, now, known=1, addr_ok=1, pkey_ok=1: (qp, now, self._shown(qp, known, addr_ok, pkey_ok)),
            )
        for name in ("retire", "judge", "ev_age"):
            wrap(0, name, Kind[name.upper()], lambda qp, arg, now: (qp, now, {}))
        for name in ("timeout", "complete"):
            wrap(0, name, Kind[name.upper()], lambda qp, now: (qp, now, {}))
        wrap(0, "probe", Kind.PROBE, lambda qp, slot, now, room: (qp, now, {"room": room}))
        wrap(1, "control", Kind.CONTROL, lambda index, now, op, arg=0, data=0: (index, now, {"data": data_of(data)}))
        wrap(1, "port", Kind.PORT, lambda now, up: (0, now, {}))
        wrap(1, "post_recv", Kind.POST_RECV, lambda index, now, wr_id: (index, now, {}))
        wrap(1, "qp_error", Kind.QP_ERROR, lambda index, now, cause: (index, now, {}))
        wrap(
            1,
            "receive",
            Kind.RECEIVE,
            lambda index, now, rx, no_resource=0: (index, now, self._shown(index, rx.known, rx.addr_ok, rx.pkey_ok)),
        )
        for name in ("advance", "flush", "recv_complete"):
            wrap(1, name, Kind[name.upper()], lambda index, now: (index, now, {}))
        for name in ("emit_ack", "emit_nack", "emit_sack"):
            wrap(1, name, Kind[name.upper()], lambda index, now, room, row, answer=None: (index, now, {}))

    # --- run --------------------------------------------------------------------------------------------------------------------------
    def run(self, ticks: int) -> None:
        """Both endpoints for some ticks; frames take 10 of them."""
        for _ in range(ticks):
            self.now += 1
            self.clock = max(self.clock, self.now * self.p.tick_div)
            arriving = [item for item in self.flight if item[0] <= self.now]
            self.flight = [item for item in self.flight if item[0] > self.now]
            for _, number, target, packet in arriving:
                plane = target & 7
                nic = target >> 3
                self.rx = (plane, packet)
                self.delivered[1 - nic][plane] += 1
                self.event(EventType.DELIVERED, nic, plane, SAME, number)
                self.ends[nic].receive(plane, packet, self.now)
            for nic, end in enumerate(self.ends):
                for plane, packet in end.run(self.now):
                    self.frame += 1
                    self.event(EventType.SENT, nic, plane, number=self.frame, data=build(packet, end.wire))
                    self.sent[nic][plane] += 1
                    if self.rng.random() < self.loss:
                        self.lost[nic][plane] += 1
                        self.event(EventType.LOST, nic, plane, number=self.frame)
                    else:
                        self.flight.append((self.now + 10 + self.rng.randrange(20), self.frame, (1 - nic) << 3 | plane, packet))
                for completion in end.poll():
                    self.event(EventType.COMPLETION, nic, 0, data=self._completion(completion))

    @staticmethod
    def _completion(c: Completion) -> bytes:
        info = 1 << 31 | c.recv << 30 | int(c.status) << 16 | c.qp
        return pack("<5I", info, c.wr_id & 0xFFFFFFFF, c.wr_id >> 32, c.length, c.imm)

    @property
    def stream(self) -> bytes:
        return b"".join(self.chunks)
