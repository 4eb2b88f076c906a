"""The whole engine, looped back on descriptors: QP 0 and QP 1 of one engine are each other's peers, over links that delay, lose, trim and reorder."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import Any

import pytest
from amaranth.sim import Simulator

from hdl.engine import Engine
from hdl.layouts import EV_CONFIG, GLOBAL_CONFIG, MODIFY_CONFIG, QP_CONFIG, RECV_REQUEST, REGION_CONFIG, WORK_REQUEST
from hdl.params import preset
from hdl.trace import TraceLayouts
from model.spec import Command, Health, Kind, Opcode, PostStatus, QpState, WcStatus
from verif.responder.bench import Input, Output
from verif.responder.codec import decoder, encoder
from verif.responder.golden import Golden

GLOBAL = {"base_rtt": 40, "reo_wnd": 40, "probe_time": 120, "sack_threshold": 4096, "sack_flush_time": 20}
QP = {"mtu": 0, "req_mpr": 128, "rsp_mpr": 128, "peer_max_wimm": 32, "timer_exp": 5, "linear_cnt": 3, "exp_cnt": 4, "cwnd": 20_000,
      "path_credit": 64, "ev_min_active": 2, "trim_nack": 1}  # fmt: skip
PSN = (0xFFFFF0, 0x7FFFFC)
MESSAGES = ((300, 1), (2000, 0), (2500, 1), (1, 0), (256, 1), (1300, 0))  # bytes, WriteIMM


class Loop:
    """One engine, its host and its two planes."""

    def __init__(self, seed: int, loss: float) -> None:
        p = self.p = preset("tiny", trace=True, tick_div=4)
        self.seed, self.loss, self.rng = seed, loss, random.Random(seed)
        self.dut = d = Engine(p)
        self.golden = Golden(p)
        self.asked_peer: set[int] = {0, 1}
        self.cmd: deque[tuple[int, int, int, int]] = deque()
        self.status: list[PostStatus] = []
        self.done: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.written = {0: 0, 1: 0}
        self.air: list[tuple[int, int, str, dict[str, Any]]] = []
        self.queues: dict[str, deque[dict[str, Any]]] = {"rx_req": deque(), "rx_rsp": deque(), "depart": deque()}
        self.departs: list[tuple[int, dict[str, Any]]] = []
        self.drops: list[tuple[str, int]] = []
        self.lost = 0
        self.clock = 0
        self.inputs = [
            Input("cmd", d.cmd, self.cmd, lambda c: dict(zip(("op", "qp", "index", "data"), c, strict=True))),
            *(Input(name, getattr(d, name), queue, lambda f: f) for name, queue in self.queues.items()),
        ]
        self.outputs = [
            Output("status", d.cmd_status, lambda v: self.status.append(PostStatus(v["status"])), 0.0), Output("verdict", d.verdict, self._verdict, 0.2),
            Output("tx_req", d.tx_req, self._data, 0.2), Output("tx_rsp", d.tx_rsp, self._answer, 0.2),
            Output("completion_req", d.completion_req, self.done.append, 0.2), Output("completion_rsp", d.completion_rsp, self.received.append, 0.2),
        ]  # fmt: skip

    def ev(self, qp: int, evi: int) -> int:
        return 0xC000_0000 | qp << 8 | evi

    def command(self, op: Command, qp: int = 0, index: int = 0, layout: Any = None, **fields: Any) -> None:
        self.cmd.append((op, qp, index, encoder(layout)(fields) if layout is not None else 0))

    def connect(self) -> None:
        self.command(Command.SET_GLOBAL, 0, 0, GLOBAL_CONFIG, **GLOBAL)
        for qp in (0, 1):
            self.command(Command.SET_REGION, 0, qp, REGION_CONFIG, rkey=0x100 + qp, va=0x1000, length=1 << 20, host=0x100_0000 * (qp + 1), write=1, valid=1)
            self.command(Command.MODIFY, qp, 0, MODIFY_CONFIG, state=QpState.INIT)
            self.command(Command.SET_QP, qp, 0, QP_CONFIG, **QP, sq_psn=PSN[qp], rq_psn=PSN[1 - qp], lfsr_seed=0xACE1 + qp, dest_qpn=self.p.qpn_base + 1 - qp)
            for evi in range(self.p.total_evs):
                self.command(Command.SET_EV, qp, evi, EV_CONFIG, value=self.ev(qp, evi), active=1, health=Health.GOOD)
            for n in range(8):
                self.command(Command.POST_RECV, qp, 0, RECV_REQUEST, wr_id=100 * qp + n)
            self.command(Command.MODIFY, qp, 0, MODIFY_CONFIG, state=QpState.RTR)
            self.command(Command.MODIFY, qp, 0, MODIFY_CONFIG, state=QpState.RTS)

    def post(self) -> None:
        for n, (length, imm) in enumerate(MESSAGES):
            for qp in (0, 1):
                self.command(Command.POST, qp, 0, WORK_REQUEST, imm_valid=imm, laddr=0x5000, raddr=0x1000 + 0x2000 * n, length=length, rkey=0x100 + 1 - qp,
                             imm=0x1000 * qp + n, wr_id=n)  # fmt: skip

    # --- planes -----------------------------------------------------------------------------------------------------------------------
    def _fly(self, port: str, frame: dict[str, Any]) -> None:
        if self.rng.random() < self.loss:
            self.lost += 1
            return
        delay = 40 + self.rng.randrange(120)
        heapq.heappush(self.air, (self.clock + delay, self.rng.getrandbits(48), port, frame))

    def _data(self, tx: dict[str, Any]) -> None:
        probe = tx["opcode"] == Opcode.PROBE
        tick = (self.clock // self.p.tick_div & 0xFFFF) or 1
        report = {name: tx[name] for name in ("qp", "psn", "evi", "send_tick")} | {"probe": int(probe), "tick": tick}
        self.departs.append((self.clock + 10, report))
        name = "probe" if probe else "data"
        ext = tx["ext"][name] | {"tx_timestamp": tick}
        plen = tx["plen"]
        udp_len = 8 + 12 + (16 if probe else 24 + 4 * (tx["opcode"] in (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM))) + (plen + 3 & ~3) + 4
        trimmed = int(not probe and self.rng.random() < self.loss / 2)
        self._fly("rx_rsp", self._common(tx) | {"ts": 1, "udp_len": udp_len, "plen": 0 if trimmed else plen, "trimmed": trimmed,
                                                "ce": int(self.rng.random() < 0.02), "ext": {name: ext}})  # fmt: skip

    def _answer(self, tx: dict[str, Any]) -> None:
        name = {Opcode.SACK: "sack", Opcode.NACK: "nack", Opcode.ACK: "ack"}[tx["opcode"]]
        self._fly("rx_req", self._common(tx) | {"ext": {name: tx["ext"][name]}})

    def _common(self, tx: dict[str, Any]) -> dict[str, Any]:
        assert tx["ev"] == self.ev(tx["qp"], tx["evi"]) and tx["plane"] == tx["evi"] // self.p.evs
        return {"qp": 1 - tx["qp"], "known": 1, "addr_ok": 1, "pkey_ok": 1} | {n: tx[n] for n in ("plane", "ev", "opcode", "a", "rtx", "psn")}

    def _verdict(self, verdict: dict[str, Any]) -> None:
        if verdict["write"]:
            assert 0x100_0000 * (verdict["qp"] + 1) <= verdict["addr"] < 0x100_0000 * (verdict["qp"] + 1) + (1 << 20)
            self.written[verdict["qp"]] += verdict["plen"]

    # --- run --------------------------------------------------------------------------------------------------------------------------
    def run(self, clocks: int, condition: Any) -> None:
        """Until ``condition`` holds; fails after ``clocks``."""
        if not hasattr(self, "sim"):
            self.sim = Simulator(self.dut)
            self.sim.add_clock(1e-8)
            self.sim.add_testbench(self._process, background=True)
        self.limit, self.condition = self.clock + clocks, condition
        self.finished = False
        while not self.finished:
            self.sim.advance()

    async def _process(self, ctx: Any) -> None:
        d, layouts = self.dut, TraceLayouts(self.p)
        rsp, req = decoder(layouts.rsp), decoder(layouts.req)
        self.req_last: dict[int, dict[str, Any]] = {}
        self.req_seq = 0
        ctx.set(d.link_up, 3)
        ctx.set(d.room_req, 3)
        ctx.set(d.room_rsp, 3)
        while True:
            ctx.set(d.tick, self.clock // self.p.tick_div)
            while self.air and self.air[0][0] <= self.clock:
                _, _, port, frame = heapq.heappop(self.air)
                self.queues[port].append(frame)
            while self.departs and self.departs[0][0] <= self.clock:
                self.queues["depart"].append(self.departs.pop(0)[1])
            for port in self.inputs:
                port.offer(ctx, self.rng)
            for port in self.outputs:
                port.open(ctx, self.rng)
            for port in (*self.inputs, *self.outputs):
                port.settle(ctx)
            for name in ("drop_req", "drop_rsp"):
                if ctx.get(getattr(d, name).valid):
                    self.drops.append((name, ctx.get(getattr(d, name).cause)))
            if ctx.get(d.trace_rsp_valid):
                self.golden.step(rsp(ctx.get(d.trace_rsp_data)), self)
            if ctx.get(d.trace_req_valid):
                record = req(ctx.get(d.trace_req_data))
                assert record["seq"] == self.req_seq
                self.req_seq += 1
                if record["kind"] != Kind.PORT:
                    self.req_last[record["qp"]] = record["ctx"]
            self.clock += 1
            self.finished = self.condition()
            assert self.finished or self.clock < self.limit, f"seed {self.seed}: {len(self.done)} of {2 * len(MESSAGES)} messages, {self.drops[-5:]}"
            await ctx.tick()


@pytest.mark.parametrize(("seed", "loss"), ((1, 0.0), (2, 0.08)))
def test_two_qps_exchange_writes(seed: int, loss: float) -> None:
    """Every message completes once, in order, on both sides; every byte is placed once; nothing stays in flight (facts, invariants 16 and 18)."""
    loop = Loop(seed, loss)
    loop.connect()
    loop.run(6000, lambda: not loop.cmd and len(loop.status) > 30)
    assert set(loop.status) == {PostStatus.OK}, loop.status
    loop.post()
    loop.run(60_000, lambda: len(loop.done) == 2 * len(MESSAGES) and not loop.air and not any(loop.queues.values()))
    settled = loop.clock + 1000
    loop.run(8000, lambda: loop.clock > settled and not loop.air)
    for qp in (0, 1):
        assert [(c["status"], c["wr_id"]) for c in loop.done if c["qp"] == qp] == [(WcStatus.SUCCESS, n) for n in range(len(MESSAGES))]
        imms = [n for n, (_, imm) in enumerate(MESSAGES) if imm]
        got = [(c["status"], c["imm"], c["length"], c["recv"]) for c in loop.received if c["qp"] == qp]
        assert got == [(WcStatus.SUCCESS, 0x1000 * (1 - qp) + n, MESSAGES[n][0], 1) for n in imms]
        assert loop.written[qp] == sum(length for length, _ in MESSAGES)
        ctx = loop.req_last[qp]
        assert (ctx["inflight"], ctx["unretired"], ctx["msg_head"], ctx["state"]) == (0, 0, len(MESSAGES), QpState.RTS), ctx
    assert bool(loop.lost) == bool(loss)


def test_an_error_reaches_the_other_owner() -> None:
    """A NAK by the responder stops the requestor of that QP too: its message is flushed, both owners are in ERROR; RESET brings both back."""
    loop = Loop(3, 0.0)
    loop.connect()
    loop.run(6000, lambda: not loop.cmd and len(loop.status) > 30)
    loop.command(Command.POST, 0, 0, WORK_REQUEST, laddr=0, raddr=0x1000, length=100, rkey=0x999, wr_id=5)
    loop.run(6000, lambda: len(loop.done) == 1)
    assert (loop.done[0]["status"], loop.done[0]["wr_id"]) == (WcStatus.REMOTE_ACCESS, 5)
    loop.run(4000, lambda: len(loop.received) == 16)
    assert {c["status"] for c in loop.received} == {WcStatus.FLUSHED}
    assert [loop.req_last[qp]["state"] for qp in (0, 1)] == [loop.golden.model.qp[qp].state for qp in (0, 1)] == [QpState.ERROR] * 2
    loop.status.clear()
    for qp in (0, 1):
        loop.command(Command.MODIFY, qp, 0, MODIFY_CONFIG, state=QpState.RESET)
    loop.run(4000, lambda: len(loop.status) == 2)
    assert [loop.golden.model.qp[qp].state for qp in (0, 1)] == [QpState.RESET] * 2
