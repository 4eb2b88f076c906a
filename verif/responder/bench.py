"""Bench of the responder alone on Amaranth's simulator: drives every stream, keeps every output, holds each commit record against the golden model."""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.sim import Simulator

from hdl.layouts import GLOBAL_CONFIG, MODIFY_CONFIG, QP_CONFIG, RECV_REQUEST, REGION_CONFIG
from hdl.params import Params, preset
from hdl.responder.responder import Responder
from model.spec import Command, Drop, Kind, Opcode, PostStatus, QpState
from verif.responder.golden import Golden

GLOBAL = {"base_rtt": 40, "sack_threshold": 4096, "sack_flush_time": 0, "oor_silent": 0}
QP = {"dest_qpn": 0xABC211, "pkey": 0xFFFF, "mtu": 0, "rsp_mpr": 128, "trim_nack": 1}


def pack(layout: data.Layout, fields: dict[str, Any]) -> int:
    return int(layout.const(fields).as_value().value)


@dataclass
class Stall:
    """How often each stream stands still: probability per clock."""

    tx: float = 0.0
    verdict: float = 0.0
    completion: float = 0.0
    status: float = 0.0
    peer: float = 0.0
    rx: float = 0.0  # gaps between frames


@dataclass
class Bench:
    """One responder and its surroundings. Fill the queues, then :meth:`run` until nothing moves (or while ``more`` gives stimulus)."""

    params: Params = field(default_factory=lambda: preset("tiny", trace=True, tick_div=4))
    seed: int = 0
    stall: Stall = field(default_factory=Stall)

    def __post_init__(self) -> None:
        p = self.params
        self.dut = Responder(p)
        self.rng = random.Random(self.seed)
        self.golden = Golden(p)
        self.cmd: deque[tuple[Command, int, int, int]] = deque()
        self.rx: deque[dict[str, Any]] = deque()
        self.wr_error: deque[int] = deque()
        self.peer_error: deque[int] = deque()
        self.status: list[PostStatus] = []
        self.verdict: list[Any] = []
        self.tx: list[Any] = []
        self.completion: list[Any] = []
        self.peer_out: list[int] = []
        self.drops: list[Drop] = []
        self.records: list[Any] = []
        self.up = self.room = (1 << p.planes) - 1
        ones = (1 << p.evs) - 1
        self.row = [[{"active": ones, "good": ones, "denied": 0} for _ in range(p.planes)] for _ in range(1 << p.qp_bits)]
        self.tick = 0
        self.clock = 0
        self.quiet = 0
        self.asked_peer: set[int] = set()  # QPs that the requestor reported
        self.held: dict[str, int] = {}

    def ev(self, qp: int, evi: int) -> int:
        """Value of EV ``evi`` of a QP."""
        return 0xA000_0000 | qp << 16 | evi << 4 | 5

    # --- stimulus ---------------------------------------------------------------------------------------------------------------------
    def command(self, op: Command, qp: int = 0, index: int = 0, layout: data.Layout | None = None, **fields: Any) -> None:
        self.cmd.append((op, qp, index, pack(layout, fields) if layout is not None else 0))

    def modify(self, qp: int, *states: QpState) -> None:
        for state in states:
            self.command(Command.MODIFY, qp, 0, MODIFY_CONFIG, state=state)

    def connect(self, qp: int, rq_psn: int = 0, receives: int = 0, **config: Any) -> None:
        """RESET -> RTS with a receive window and ``receives`` entries (wr_id 0x100 x qp + n)."""
        self.modify(qp, QpState.INIT)
        self.command(Command.SET_QP, qp, 0, QP_CONFIG, **(QP | {"rq_psn": rq_psn} | config))
        for n in range(receives):
            self.post_recv(qp, 0x100 * qp + n)
        self.modify(qp, QpState.RTR, QpState.RTS)

    def post_recv(self, qp: int, wr_id: int) -> None:
        self.command(Command.POST_RECV, qp, 0, RECV_REQUEST, wr_id=wr_id)

    def setup(self, **glob: int) -> None:
        """Global configuration, and one writable region per QP: R_Key 0x77000000 + index, VA 0x10000 x (index + 1), 1 MiB at host 0x800000 x (index + 1)."""
        self.command(Command.SET_GLOBAL, 0, 0, GLOBAL_CONFIG, **(GLOBAL | glob))
        for index in range(self.params.qps):
            self.command(Command.SET_REGION, 0, index, REGION_CONFIG, rkey=0x7700_0000 + index, va=0x10000 * (index + 1), length=1 << 20,
                         host=0x80_0000 * (index + 1), write=1, valid=1)  # fmt: skip

    def frame(self, qp: int, opcode: Opcode, psn: int, **fields: Any) -> None:
        """Queue a frame; extension fields are given flat, lengths follow ``plen`` (default: a sound 4-byte ONLY of the QP's region)."""
        ext = {"probe_id", "tx_timestamp"} if opcode == Opcode.PROBE else {"rqmsn", "msn", "tx_timestamp", "va", "rkey", "dmalen", "imm"}
        plen = fields.get("plen", 0 if opcode == Opcode.PROBE else 4)
        base = {"qp": qp, "known": 1, "addr_ok": 1, "pkey_ok": 1, "plane": 0, "trimmed": 0, "ce": 0, "ev": 0xE0000000 | psn,
                "udp_len": 44 + 4 * (opcode in (0xC9, 0xCB)) + (plen + 3 & ~3), "opcode": opcode, "a": 0, "rtx": 0, "ts": 1, "psn": psn, "plen": plen}  # fmt: skip
        inner = {"tx_timestamp": 0x1000 + (psn & 0xFFF)}
        if opcode != Opcode.PROBE:
            inner |= {"va": 0x10000 * (qp + 1), "rkey": 0x7700_0000 + qp, "dmalen": plen}
        inner |= {k: v for k, v in fields.items() if k in ext}
        base |= {k: v for k, v in fields.items() if k not in ext}
        kind = "probe" if opcode == Opcode.PROBE else "data"
        self.rx.append(base | {"ext": {kind: inner}})

    # --- run --------------------------------------------------------------------------------------------------------------------------
    def run(self, clocks: int = 20_000, more: Callable[[Bench], bool] | None = None, quiet: int = 300) -> None:
        """Simulate until everything given is taken and nothing has moved for ``quiet`` clocks; fails when ``clocks`` do not suffice.

        ``more`` is called in every clock; it may add stimulus and returns whether it will add more.
        """
        self.more, self.limit, self.quiet_limit = more, clocks, quiet
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if not hasattr(self, "sim"):
                self.sim = Simulator(self.dut)
                self.sim.add_clock(1e-8)
                self.sim.add_testbench(self._process, background=True)
            self.finished, self.quiet = False, 0
            while not self.finished:
                self.sim.advance()
        self._agree()

    def _agree(self) -> None:
        """Streams against records: every output once, in order, with the record's content."""
        g = self.golden
        assert self.verdict == g.verdicts, (self.verdict[-3:], g.verdicts[-3:])
        assert self.completion == g.completions, (self.completion, g.completions)
        assert self.tx == g.frames, (self.tx[-3:], g.frames[-3:])
        assert sorted(self.drops) == sorted(g.drops())
        assert self.peer_out == g.peers, (self.peer_out, g.peers)
        assert not (left := g.pending(self.tick)), f"never came: {left}"

    async def _process(self, ctx: Any) -> None:
        d, p, rng, stall = self.dut, self.params, self.rng, self.stall
        ctx.set(d.status.ready, 0)
        seen = {"path_qp": 0, "path_ev": 0}
        while True:
            moving = self.more is not None and self.more(self)
            self.tick = self.clock // p.tick_div & 0xFFFFFFFF
            ctx.set(d.tick, self.tick)
            ctx.set(d.up, self.up)
            ctx.set(d.room, self.room)
            qp = seen["path_qp"]
            ctx.set(Value.cast(d.path_row), pack(d.path_row.shape(), self.row[qp]))
            ctx.set(d.path_ev, self.ev(qp, seen["path_ev"]))
            self._offer(ctx, "cmd", d.cmd, self.cmd, lambda c: {"op": c[0], "qp": c[1], "index": c[2], "data": c[3]}, 0.0)
            self._offer(ctx, "rx", d.rx, self.rx, lambda f: f, stall.rx)
            self._offer(ctx, "wr", d.wr_error, self.wr_error, lambda q: {"qp": q}, 0.0)
            self._offer(ctx, "pe", d.peer_error_in, self.peer_error, lambda q: {"qp": q}, 0.0)
            taken = False
            for name, port, chance, sink in (
                ("st", d.status, stall.status, lambda v: self.status.append(PostStatus(v.status))), ("ve", d.verdict, stall.verdict, self._verdict),
                ("tx", d.tx, stall.tx, self._tx), ("co", d.completion, stall.completion, self._completion),
                ("pe", d.peer_error_out, stall.peer, lambda v: self.peer_out.append(v.qp)),
            ):  # fmt: skip
                ready = rng.random() >= chance if chance else 1
                ctx.set(port.ready, ready)
                if ctx.get(port.valid):
                    value = ctx.get(Value.cast(port.payload))
                    assert self.held.get(name + "_out", value) == value, f"{name}: payload moved before it was accepted"
                    if ready:
                        self.held.pop(name + "_out", None)
                        sink(data.Const(port.payload.shape(), value))
                        taken = True
                    else:
                        self.held[name + "_out"] = value
                else:
                    assert name + "_out" not in self.held, f"{name}: valid fell before it was accepted"
            taken |= any(ctx.get(port.valid & port.ready) for port in (d.cmd, d.rx, d.wr_error, d.peer_error_in))
            for name, port, queue in (("cmd", d.cmd, self.cmd), ("rx", d.rx, self.rx), ("wr", d.wr_error, self.wr_error), ("pe", d.peer_error_in, self.peer_error)):
                if ctx.get(port.valid) and ctx.get(port.ready):
                    queue.popleft()
                    self.held.pop(name, None)
            if ctx.get(d.drop.valid):
                self.drops.append(Drop(ctx.get(d.drop.cause)))
            if ctx.get(d.trace_valid):
                record = data.Const(d.trace_data.shape(), ctx.get(d.trace_data.as_value()))
                self.records.append(record)
                self.golden.step(record, self)
                taken = True
            seen = {"path_qp": ctx.get(d.path_qp), "path_ev": ctx.get(d.path_ev_index)}
            self.quiet = 0 if taken or moving or self.cmd or self.rx else self.quiet + 1
            self.clock += 1
            self.limit -= 1
            if self.quiet > self.quiet_limit:
                self.finished = True
            assert self.limit > 0 or self.finished, f"still moving: {len(self.cmd)} commands, {len(self.rx)} frames left after {self.clock} clocks"
            await ctx.tick()

    def _offer(self, ctx: Any, name: str, port: Any, queue: deque[Any], fields: Callable[[Any], dict[str, Any]], gap: float) -> None:
        if queue and (name in self.held or self.rng.random() >= gap):
            if name not in self.held:
                self.held[name] = 1
                ctx.set(Value.cast(port.payload), pack(port.payload.shape(), fields(queue[0])))
            ctx.set(port.valid, 1)
        else:
            ctx.set(port.valid, 0)

    def _verdict(self, v: Any) -> None:
        self.verdict.append({"write": v.write, "addr": v.addr, "plen": v.plen, "qp": v.qp})

    def _completion(self, v: Any) -> None:
        self.completion.append({name: getattr(v, name) for name, _ in v.shape()})

    def _tx(self, v: Any) -> None:
        self.tx.append(v.as_bits() if hasattr(v, "as_bits") else v.as_value().value)

    # --- looking at records -----------------------------------------------------------------------------------------------------------
    def kinds(self, qp: int | None = None) -> list[Kind]:
        return [Kind(r.kind) for r in self.records if qp is None or r.qp == qp]

    def bodies(self, kind: Kind) -> list[Any]:
        return [r.body[kind.name.lower()] for r in self.records if r.kind == kind]
