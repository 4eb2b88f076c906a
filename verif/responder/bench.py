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
from hdl.trace import TraceLayouts
from model import spec
from model.spec import Command, Drop, Kind, Opcode, PostStatus, QpState
from verif.responder.codec import decoder, encoder
from verif.responder.golden import Golden

GLOBAL = {"base_rtt": 40, "sack_threshold": 4096, "sack_flush_time": 0, "oor_silent": 0}
QP = {"dest_qpn": 0xABC211, "pkey": 0xFFFF, "mtu": 0, "rsp_mpr": 128, "trim_nack": 1}


@dataclass
class Stall:
    """How often each stream stands still: probability per clock."""

    tx: float = 0.0
    verdict: float = 0.0
    completion: float = 0.0
    status: float = 0.0
    peer: float = 0.0
    rx: float = 0.0  # gaps between frames


class Input:
    """Drives one stream from a queue: payload stable until accepted, gaps with probability ``gap`` per clock."""

    def __init__(self, name: str, port: Any, queue: deque[Any], fields: Callable[[Any], dict[str, Any]], gap: float = 0.0) -> None:
        self.name, self.port, self.queue, self.fields, self.gap = name, port, queue, fields, gap
        self.bits, self.encode = Value.cast(port.payload), encoder(port.payload.shape())
        self.valid = False

    def offer(self, ctx: Any, rng: random.Random) -> None:
        if not self.valid and self.queue and (not self.gap or rng.random() >= self.gap):
            self.valid = True
            ctx.set(self.bits, self.encode(self.fields(self.queue[0])))
        ctx.set(self.port.valid, self.valid)

    def settle(self, ctx: Any) -> bool:
        """Whether a payload goes over with the next edge."""
        if not self.valid or not ctx.get(self.port.ready):
            return False
        self.queue.popleft()
        self.valid = False
        return True


class Output:
    """Takes one stream with random ready; checks that valid and payload stay until accepted."""

    def __init__(self, name: str, port: Any, sink: Callable[[Any], object], stall: float) -> None:
        self.name, self.port, self.sink, self.stall = name, port, sink, stall
        self.bits, self.decode = Value.cast(port.payload), decoder(port.payload.shape())
        self.ready = False
        self.held: int | None = None

    def open(self, ctx: Any, rng: random.Random) -> None:
        self.ready = not self.stall or rng.random() >= self.stall
        ctx.set(self.port.ready, self.ready)

    def settle(self, ctx: Any) -> bool:
        if not ctx.get(self.port.valid):
            assert self.held is None, f"{self.name}: valid fell before it was accepted"
            return False
        bits = ctx.get(self.bits)
        assert self.held in (None, bits), f"{self.name}: payload moved before it was accepted"
        self.held = None if self.ready else bits
        if self.ready:
            self.sink(self.decode(bits))
        return self.ready


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
        d, stall = self.dut, self.stall
        self.outputs = {port.name: port for port in (
            Output("status", d.status, lambda v: self.status.append(PostStatus(v["status"])), stall.status),
            Output("verdict", d.verdict, self.verdict.append, stall.verdict),
            Output("tx", d.tx, self.tx.append, stall.tx),
            Output("completion", d.completion, self.completion.append, stall.completion),
            Output("peer_error_out", d.peer_error_out, lambda v: self.peer_out.append(v["qp"]), stall.peer),
        )}  # fmt: skip
        self.up = self.room = (1 << p.planes) - 1
        ones = (1 << p.evs) - 1
        self.row = [[{"active": ones, "good": ones, "denied": 0} for _ in range(p.planes)] for _ in range(1 << p.qp_bits)]
        self.tick = 0
        self.clock = 0
        self.quiet = 0
        self.asked_peer: set[int] = set()  # QPs that the requestor reported

    def ev(self, qp: int, evi: int) -> int:
        """Value of EV ``evi`` of a QP."""
        return 0xA000_0000 | qp << 16 | evi << 4 | 5

    # --- stimulus ---------------------------------------------------------------------------------------------------------------------
    def command(self, op: Command, qp: int = 0, index: int = 0, layout: data.Layout | None = None, **fields: Any) -> None:
        self.cmd.append((op, qp, index, encoder(layout)(fields) if layout is not None else 0))

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
        udp_len = 8 + spec.BTH_BYTES + spec.extension_bytes(opcode, 1) + (plen + 3 & ~3) + spec.ICRC_BYTES
        base = {"qp": qp, "known": 1, "addr_ok": 1, "pkey_ok": 1, "plane": 0, "trimmed": 0, "ce": 0, "ev": 0xE0000000 | psn,
                "udp_len": udp_len, "opcode": opcode, "a": 0, "rtx": 0, "ts": 1, "psn": psn, "plen": plen}  # fmt: skip
        inner = {"tx_timestamp": 0x1000 + (psn & 0xFFF)}
        if opcode != Opcode.PROBE:
            inner |= {"va": 0x10000 * (qp + 1), "rkey": 0x7700_0000 + qp, "dmalen": plen}
        inner |= {k: v for k, v in fields.items() if k in ext}
        base |= {k: v for k, v in fields.items() if k not in ext}
        kind = "probe" if opcode == Opcode.PROBE else "data"
        self.rx.append(base | {"ext": {kind: inner}})

    # --- run --------------------------------------------------------------------------------------------------------------------------
    def run(self, clocks: int = 20_000, more: Callable[[Bench], bool] | None = None, quiet: int = 60) -> None:
        """Simulate until everything given is taken and nothing has moved for ``quiet`` clocks; fails when ``clocks`` do not suffice.

        ``more`` is called in every clock; it may add stimulus and returns whether it will add more.
        """
        self.more, self.quiet_limit = more, quiet
        self._advance(clocks)
        self._agree()

    def run_until(self, condition: Callable[[], bool], clocks: int = 5000) -> None:
        """Simulate until ``condition`` holds; everything may be under way then."""
        self.more, self.quiet_limit = None, clocks
        self._advance(clocks, condition)

    def _advance(self, clocks: int, condition: Callable[[], bool] = lambda: False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if not hasattr(self, "sim"):
                self.sim = Simulator(self.dut)
                self.sim.add_clock(1e-8)
                self.sim.add_testbench(self._process, background=True)
            self.finished, self.quiet, self.limit, self.condition = False, 0, clocks, condition
            while not self.finished:
                self.sim.advance()

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
        d, p, rng = self.dut, self.params, self.rng
        inputs = [
            Input("cmd", d.cmd, self.cmd, lambda c: {"op": c[0], "qp": c[1], "index": c[2], "data": c[3]}),
            Input("rx", d.rx, self.rx, lambda f: f, self.stall.rx),
            Input("wr_error", d.wr_error, self.wr_error, lambda q: {"qp": q}),
            Input("peer_error_in", d.peer_error_in, self.peer_error, lambda q: {"qp": q}),
        ]
        outputs = list(self.outputs.values())
        rows, row_bits = encoder(d.path_row.shape()), Value.cast(d.path_row)
        record_of = decoder(TraceLayouts(p).rsp)
        path_qp = path_evi = 0
        while True:
            moving = self.more is not None and self.more(self)
            self.tick = self.clock // p.tick_div & 0xFFFFFFFF
            ctx.set(d.tick, self.tick)
            ctx.set(d.up, self.up)
            ctx.set(d.room, self.room)
            ctx.set(row_bits, rows(self.row[path_qp]))
            ctx.set(d.path_ev, self.ev(path_qp, path_evi))
            for port in inputs:
                port.offer(ctx, rng)
            for port in outputs:
                port.open(ctx, rng)
            taken = False
            for port in (*inputs, *outputs):
                taken |= port.settle(ctx)
            if ctx.get(d.drop.valid):
                self.drops.append(Drop(ctx.get(d.drop.cause)))
            if ctx.get(d.trace_valid):
                record = record_of(ctx.get(d.trace_data))
                self.records.append(record)
                self.golden.step(record, self)
                taken = True
            path_qp, path_evi = ctx.get(d.path_qp), ctx.get(d.path_ev_index)
            self.quiet = 0 if taken or moving or self.cmd or self.rx else self.quiet + 1
            self.clock += 1
            self.limit -= 1
            self.finished = self.quiet > self.quiet_limit or self.condition()
            assert self.limit > 0 or self.finished, f"still moving: {len(self.cmd)} commands, {len(self.rx)} frames left after {self.clock} clocks"
            await ctx.tick()

    # --- looking at records -----------------------------------------------------------------------------------------------------------
    def kinds(self, qp: int | None = None) -> list[Kind]:
        return [Kind(r["kind"]) for r in self.records if qp is None or r["qp"] == qp]

    def bodies(self, kind: Kind) -> list[Any]:
        return [r["body"][kind.name.lower()] for r in self.records if r["kind"] == kind]
