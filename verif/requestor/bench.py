"""A scripted bench around the requestor: plays host, egress and responder in Amaranth's simulator.

A test is an ``async`` function that gets a :class:`Bench`, queues inputs, and lets clocks pass with :meth:`Bench.run` until a condition on the
outputs holds. Every wait has a limit in clocks and fails with what it waited for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Cat, Const, signed
from amaranth.lib import data
from amaranth.sim import Simulator

from hdl import layouts as fixed
from hdl.layouts import Layouts
from hdl.params import Params
from hdl.requestor.requestor import Requestor
from hdl.trace import TraceLayouts
from model import spec
from model.spec import Command, Kind, PostStatus, QpState

OK = int(PostStatus.OK)
GLOBALS = {
    "base_rtt": 94, "reo_wnd": 94, "probe_time": 282, "nack_retx_time": 0, "sack_threshold": 16384, "sack_flush_time": 47, "udp_port": 4791,
}  # fmt: skip
QP = {
    "dest_qpn": 0x200, "pkey": 0xFFFF, "mtu": 2, "sq_psn": 0xFFFFF0, "rq_psn": 0, "req_mpr": 128, "rsp_mpr": 128, "peer_max_wimm": 32,
    "timer_exp": 8, "linear_cnt": 3, "exp_cnt": 2, "cwnd": 1 << 20, "path_credit": 128, "ev_min_active": 2, "lfsr_seed": 0xACE1,
}  # fmt: skip


def decode(shape: Any, value: int, only: str | None = None) -> Any:
    """``value`` as nested dicts (lists for arrays) by the layout ``shape``; of a union, only the member ``only``, if given."""
    if isinstance(shape, data.StructLayout | data.UnionLayout):
        items = [(name, f) for name, f in shape if not isinstance(shape, data.UnionLayout) or only in (None, name)]
        return {name: decode(f.shape, value >> f.offset & ((1 << f.width) - 1)) for name, f in items}
    if isinstance(shape, data.ArrayLayout):
        return [decode(f.shape, value >> f.offset & ((1 << f.width) - 1)) for _, f in shape]
    if isinstance(shape, data.FlexibleLayout):
        raise TypeError(f"{shape}: structs, unions and arrays are expected")
    if isinstance(shape, type(signed(1))) and shape.signed and value >> (shape.width - 1):
        return value - (1 << shape.width)
    return value


def pack(layout: data.Layout, fields: dict[str, Any]) -> int:
    """The integer of ``fields`` in ``layout``; fields not named are 0."""
    return int(data.Layout.cast(layout).const(fields).as_bits())


@dataclass
class Bench:
    """State of the bench. Outputs gather in the lists; inputs wait in the queues."""

    params: Params
    seed: int = 0
    tick_div: int = 4
    cmds: deque[dict[str, Any]] = field(default_factory=deque)
    rxs: deque[dict[str, Any]] = field(default_factory=deque)
    departs: deque[dict[str, Any]] = field(default_factory=deque)
    peer_errors: deque[int] = field(default_factory=deque)
    statuses: list[int] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    completions: list[dict[str, Any]] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    room: int = -1
    up: int = -1
    auto_depart: bool = True
    clock: int = 0
    tick: int = 0
    ready: Callable[[str], bool] = lambda name: True
    trace_on: bool = True  # False: the requestor without trace ports; no records then
    on_record: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.dut: Any = None
        self.layouts = Layouts(self.params)
        self.trace = TraceLayouts(self.params)
        all_planes = (1 << self.params.planes) - 1
        self.room &= all_planes
        self.up &= all_planes
        self.ctx: Any = None
        self._offered: dict[str, bool] = {"cmd": False, "rx": False, "depart": False, "peer_error_in": False}
        self._last: dict[str, Any] = {}

    # --- one clock -----------------------------------------------------------------------------------------------------------------------
    async def step(self) -> None:
        """One clock: offers inputs, takes outputs."""
        ctx, dut = self.ctx, self.dut
        queues: dict[str, tuple[Any, deque[Any]]] = {
            "cmd": (dut.cmd, self.cmds), "rx": (dut.rx, self.rxs), "depart": (dut.depart, self.departs),
            "peer_error_in": (dut.peer_error_in, self.peer_errors),
        }  # fmt: skip
        for name, (stream, queue) in queues.items():
            if queue and not self._offered[name]:
                ctx.set(stream.payload, {"qp": queue[0]} if name == "peer_error_in" else queue[0])
                ctx.set(stream.valid, 1)
                self._offered[name] = True
        levels = {"tick": self.tick, "up": self.up, "room": self.room}
        outputs = {"tx": dut.tx, "status": dut.status, "completion": dut.completion, "peer_error_out": dut.peer_error_out}
        for name in outputs:
            levels[f"{name}.ready"] = int(self.ready(name))
        for name, value in levels.items():
            if self._last.get(name) != value:
                port = getattr(dut, name) if "." not in name else outputs[name.split(".")[0]].ready
                ctx.set(port, value)
                self._last[name] = value
        trace = dut.trace_valid if self.trace_on else Const(0, 1)
        flags = ctx.get(Cat(dut.tx.valid, dut.status.valid, dut.completion.valid, dut.peer_error_out.valid, trace, dut.drop.valid, dut.cmd.ready,
                            dut.rx.ready, dut.depart.ready, dut.peer_error_in.ready))  # fmt: skip
        if flags & 1 and levels["tx.ready"]:
            tx = decode(self.layouts.tx, ctx.get(dut.tx.payload.as_value()))
            tx["tick"], tx["clock"] = self.tick, self.clock
            self.sent.append(tx)
            if self.auto_depart:
                self.depart(tx)
        if flags & 2 and levels["status.ready"]:
            self.statuses.append(ctx.get(dut.status.payload.status))
        if flags & 4 and levels["completion.ready"]:
            self.completions.append(decode(self.layouts.completion, ctx.get(dut.completion.payload.as_value())))
        if flags & 8 and levels["peer_error_out.ready"]:
            self.told.append(ctx.get(dut.peer_error_out.payload.qp))
        if flags & 16:
            record = self._record(ctx.get(dut.trace_data))
            self.records.append(record)
            if self.on_record is not None:
                self.on_record(record)
        if flags & 32:
            self.drops.append(ctx.get(dut.drop.cause))
        await ctx.tick()
        for bit, (name, (stream, queue)) in enumerate(queues.items()):
            if self._offered[name] and flags >> (6 + bit) & 1:
                queue.popleft()
                ctx.set(stream.valid, 0)
                self._offered[name] = False
        self.clock += 1
        if self.clock % self.tick_div == 0:
            self.tick = (self.tick + 1) & 0xFFFFFFFF

    def _record(self, value: int) -> dict[str, Any]:
        layout = self.trace.req
        kind = Kind(value & 0xFF)
        record = {name: decode(f.shape, value >> f.offset & ((1 << f.width) - 1), kind.name.lower() if name == "body" else None) for name, f in layout}
        record["kind"], record["body"] = kind, record["body"][kind.name.lower()]
        record["clock"] = self.clock
        return record

    # --- waits -------------------------------------------------------------------------------------------------------------------------------
    async def run(self, until: Callable[[], object] | None = None, limit: int = 2000, what: str = "the condition") -> None:
        """Lets clocks pass until ``until()`` is true (an error after ``limit``), or ``limit`` clocks."""
        for _ in range(limit):
            if until is not None and until():
                return
            await self.step()
        if until is not None:
            last = [f"{r['kind'].name} qp{r['qp']} {r['body']}" for r in self.records[-5:]]
            raise AssertionError(f"seed {self.seed}: {what} did not come within {limit} clocks; last steps: {last}")

    async def quiet(self, clocks: int = 300) -> None:
        """Lets ``clocks`` pass."""
        await self.run(None, clocks)

    async def rest(self, clocks: int = 60) -> None:
        """Lets clocks pass until no step has come for ``clocks``."""
        count, since = len(self.records), self.clock
        while self.clock - since < clocks:
            await self.step()
            if len(self.records) != count:
                count, since = len(self.records), self.clock

    # --- host ------------------------------------------------------------------------------------------------------------------------------------
    async def command(self, op: Command, qp: int = 0, index: int = 0, layout: data.Layout | None = None, limit: int = 2000, **fields: Any) -> int:
        """Issues a command and returns its status."""
        before = len(self.statuses)
        bits = pack(layout, fields) if layout is not None else 0
        self.cmds.append({"op": int(op), "qp": qp, "index": index, "data": bits})
        await self.run(lambda: len(self.statuses) > before, limit, f"a status of {op.name}")
        return self.statuses[-1]

    async def modify(self, qp: int, state: QpState, limit: int = 2000) -> int:
        return await self.command(Command.MODIFY, qp, layout=fixed.MODIFY_CONFIG, state=int(state), limit=limit)

    async def post(self, qp: int = 0, length: int = 1024, imm: int | None = None, raddr: int = 0x1_0000_0001, laddr: int = 0x2003, wr_id: int = 0) -> int:
        return await self.command(Command.POST, qp, layout=fixed.WORK_REQUEST, imm_valid=int(imm is not None), imm=imm or 0, length=length,
                                  raddr=raddr, laddr=laddr, rkey=0x77, wr_id=wr_id)  # fmt: skip

    def ev_value(self, qp: int, evi: int) -> int:
        """The EV value that :meth:`connect` gives."""
        return 0xA000_0000 | qp << 16 | evi << 4 | 1

    async def connect(self, qp: int = 0, active: int | None = None, glob: dict[str, int] | None = None, **qp_config: int) -> None:
        """Configures the NIC and one QP up to RTS. ``active`` EVs per plane, the others BACKUP, all GOOD."""
        active = self.params.active_evs if active is None else active
        if not any(s == OK for s in self.statuses):
            assert await self.command(Command.SET_GLOBAL, layout=fixed.GLOBAL_CONFIG, **{**GLOBALS, **(glob or {})}) == OK
        assert await self.modify(qp, QpState.INIT) == OK
        assert await self.command(Command.SET_QP, qp, layout=fixed.QP_CONFIG, **{**QP, **qp_config}) == OK
        for evi in range(self.params.total_evs):
            assert await self.command(Command.SET_EV, qp, evi, layout=fixed.EV_CONFIG, value=self.ev_value(qp, evi),
                                      active=int(evi % self.params.evs < active), health=0) == OK  # fmt: skip
        assert await self.modify(qp, QpState.RTR) == OK
        assert await self.modify(qp, QpState.RTS) == OK

    # --- egress and responder ---------------------------------------------------------------------------------------------------------------------
    def depart(self, tx: dict[str, Any], tick: int | None = None, dropped: int = 0, read_error: int = 0) -> None:
        """The frame of descriptor ``tx`` starts to leave now (or is dropped)."""
        stamp = (self.tick if tick is None else tick) & 0xFFFF or 1
        tx["stamp"] = stamp
        self.departs.append({
            "qp": tx["qp"], "probe": int(tx["opcode"] == spec.Opcode.PROBE), "psn": tx["psn"], "evi": tx["evi"], "send_tick": tx["send_tick"],
            "tick": stamp, "dropped": dropped, "read_error": read_error,
        })  # fmt: skip

    def _rx(self, qp: int, opcode: spec.Opcode, psn: int, ext: dict[str, Any], **over: int) -> None:
        self.rxs.append({"qp": qp, "known": 1, "addr_ok": 1, "pkey_ok": 1, "opcode": int(opcode), "psn": psn, "ext": ext, **over})

    def sack(self, qp: int, cack: int, *, cause: dict[str, Any] | None = None, base: int | None = None, bitmap: int = 0, rcvd: int = 0,
             mpr: int = 0, mflag: int = 0, probe_id: int | None = None, **over: int) -> None:  # fmt: skip
        """A SACK. ``cause`` is the descriptor of the packet (or probe) that caused it: entropy, timestamp and ack_psn are its; ``rcvd`` in bytes."""
        cause = cause or {"ev": 0, "psn": cack, "stamp": 0}
        offset = probe_id if probe_id is not None else (cause["psn"] - cack) & 0xFFFF
        base = cack + 1 if base is None else base
        self._rx(qp, spec.Opcode.SACK, cack, {"sack": {
            "mflag": mflag, "pr": int(probe_id is not None), "ack_psn_offset": offset - 0x10000 if offset & 0x8000 else offset,
            "entropy": cause["ev"], "cack_psn": cack, "mpr": mpr, "sack_offset": ((base - cack + 0x8000) & 0xFFFF) - 0x8000, "sack_bitmap": bitmap,
            "echo_timestamp": cause["stamp"], "rcvd_bytes": -(-rcvd // 256) & 0xFFFFFF,
        }}, **over)  # fmt: skip

    def nack(self, tx: dict[str, Any], reason: int, echo: int | None = None, **over: int) -> None:
        """A NACK of the packet of descriptor ``tx``."""
        self._rx(tx["qp"], spec.Opcode.NACK, tx["psn"], {"nack": {
            "nack_reason": int(reason), "entropy": tx["ev"], "nack_psn": tx["psn"], "echo_timestamp": tx["stamp"] if echo is None else echo,
        }}, **over)  # fmt: skip

    def ack(self, qp: int, psn: int, syndrome: int = 0x1F, **over: int) -> None:
        """A transport ACK or NAK."""
        self._rx(qp, spec.Opcode.ACK, psn, {"ack": {"syndrome": int(syndrome), "aeth_msn": 0}}, **over)

    def kinds(self, kind: Kind) -> list[dict[str, Any]]:
        """Records of one kind so far."""
        return [r for r in self.records if r["kind"] == kind]


def packet_size(tx: dict[str, Any]) -> int:
    """UDP length + 40 of a data descriptor, by counting headers."""
    imm = tx["opcode"] in spec.IMM_OPCODES
    headers = sum(spec.header_bytes(h) for h in ("BTH", "METH", "TSETH", "RETH")) + (4 if imm else 0)
    return 8 + headers + (tx["plen"] + 3 & ~3) + 4 + spec.ROUTING_BYTES


_compiled: dict[Params, tuple[Requestor, Simulator, list[Any]]] = {}


def simulate(test: Callable[[Bench], Awaitable[None]], params: Params, seed: int = 0, **options: Any) -> Bench:
    """Runs ``test`` on a requestor of ``params`` out of reset. The compiled simulator of equal parameters is used again."""
    bench = Bench(params, seed, **options)
    key = bench.params.with_(trace=bench.trace_on)
    if key not in _compiled:
        dut, running = Requestor(key), []
        sim = Simulator(dut)
        sim.add_clock(1e-8)

        async def process(ctx: Any) -> None:
            current, body = running[0]
            current.ctx = ctx
            await body(current)

        sim.add_testbench(process)
        _compiled[key] = dut, sim, running
    bench.dut, sim, running = _compiled[key]
    if running:
        sim.reset()
    running[:] = [(bench, test)]
    sim.run()
    return bench
