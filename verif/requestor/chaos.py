"""A random world around the requestor: responder, lossy paths, host. Seeded; what it does is legal or deliberately forged."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from hdl import layouts as fixed
from model import spec
from model.spec import Command, MFlag, NackReason, Opcode, QpState
from verif.requestor.bench import QP, Bench, pack, packet_size

M24 = 0xFFFFFF


class Responder:
    """The peer of one QP: what arrived, and answers about it."""

    def __init__(self, first: int) -> None:
        self.cack = (first - 1) & M24
        self.newest = self.cack
        self.above: dict[int, bool] = {}  # arrived above cack: PSN -> message end
        self.done: int | None = None
        self.total = 0
        self.dead = False

    def arrive(self, tx: dict[str, Any]) -> bool:
        """A data packet: new or not."""
        psn = tx["psn"]
        ahead = (psn - self.cack) & M24
        if ahead == 0 or ahead >= 1 << 23 or psn in self.above:
            return False
        self.above[psn] = tx["opcode"] in spec.END_OPCODES
        if (psn - self.newest) & M24 < 1 << 23:
            self.newest = psn
        self.total += packet_size(tx)
        while (nxt := (self.cack + 1) & M24) in self.above:
            if self.above.pop(nxt):
                self.done = nxt
            self.cack = nxt
        return True


class Chaos:
    """Drives a :class:`Bench` at random. Rates are probabilities per packet or per clock."""

    def __init__(self, bench: Bench, loss: float = 0.05, forged: float = 0.02, host: float = 0.01, fatal: float = 0.0, jitter: int = 200) -> None:
        self.b, self.rng = bench, bench.rng
        self.loss, self.forged, self.host, self.fatal, self.jitter = loss, forged, host, fatal, jitter
        self.peers: dict[int, Responder] = {}
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = 0
        self.seen = 0
        self.posting = True
        self.calm = False
        self.dead_evs: set[tuple[int, int]] = set()
        self.pending_reset: dict[int, int] = {}
        self.configs: dict[int, dict[str, int]] = {}
        self.active: int | None = None
        bench.auto_depart = False

    async def connect(self, qp: int, active: int, glob: dict[str, int] | None = None, **config: int) -> None:
        self.configs[qp] = config
        self.active = active
        await self.b.connect(qp, active, glob, **config)
        self.peers[qp] = Responder(config["sq_psn"])

    def later(self, action: Callable[[], None], least: int = 4) -> None:
        self.serial += 1
        heapq.heappush(self.events, (self.b.clock + least + self.rng.randrange(self.jitter), self.serial, action))

    async def run(self, clocks: int) -> None:
        """``clocks`` clocks of random life."""
        for _ in range(clocks):
            await self.clock()

    async def clock(self) -> None:
        b, rng = self.b, self.rng
        while self.events and self.events[0][0] <= b.clock:
            heapq.heappop(self.events)[2]()
        while self.seen < len(b.sent):
            self._sent(b.sent[self.seen])
            self.seen += 1
        if not self.calm:
            if rng.random() < self.host:
                self._host()
            if rng.random() < 0.02:
                b.room = rng.randrange(1 << b.params.planes) | (rng.random() < 0.7) * ((1 << b.params.planes) - 1)
            if rng.random() < 0.001:
                b.up = rng.randrange(1 << b.params.planes) | (rng.random() < 0.7) * ((1 << b.params.planes) - 1)
            if rng.random() < 0.003:
                evi = (rng.randrange(b.params.qps), rng.randrange(b.params.total_evs))
                self.dead_evs.symmetric_difference_update({evi})
            if rng.random() < 0.0005:
                b.tick = (b.tick + rng.choice((50, 500, 5000, 9000))) & 0xFFFFFFFF
            if rng.random() < self.forged / 10:
                self._forge()
        self._finish_reset()
        await b.step()

    # --- packets ---------------------------------------------------------------------------------------------------------------------------
    def _sent(self, tx: dict[str, Any]) -> None:
        fate = self.rng.random() if not self.calm else 1.0

        def leave() -> None:
            if fate < 0.01:
                self.b.depart(tx, dropped=1)
            elif fate < 0.01 + self.fatal / 10:
                self.b.depart(tx, read_error=1)
            else:
                self.b.depart(tx)
                self.later(lambda: self._arrive(tx))
                if fate > 0.98 and not self.calm:
                    self.later(lambda: self._arrive(tx))

        self.later(leave, 1)

    def _arrive(self, tx: dict[str, Any]) -> None:
        rng, b = self.rng, self.b
        peer = self.peers.get(tx["qp"])
        if peer is None or peer.dead:
            return
        lost = (tx["qp"], tx["evi"]) in self.dead_evs or rng.random() < self.loss
        if not self.calm and lost:
            return
        if tx["opcode"] == Opcode.PROBE:
            self._answer(peer, tx, probe=True)
            self._ack(peer, tx["qp"])
            return
        if not self.calm and rng.random() < self.loss:
            b_reason = rng.choice(list(NackReason)[:-1]) if rng.random() > self.fatal else NackReason.UNEXP_EVENT
            echo = 0 if rng.random() < 0.1 else tx["stamp"]
            self.later(lambda: b.nack(tx, b_reason, echo))
            return
        before = peer.done
        new = peer.arrive(tx)
        if not new or tx["a"] or tx["rtx"] or rng.random() < 0.15:
            self._answer(peer, tx)
        if peer.done != before or not new:
            if not self.calm and rng.random() < self.fatal:
                syndrome = rng.choice((0x61, 0x62, 0x63))
                self.later(lambda: b.ack(tx["qp"], tx["psn"], syndrome))
            self._ack(peer, tx["qp"])

    def _ack(self, peer: Responder, qp: int) -> None:
        if peer.done is not None and (self.calm or self.rng.random() > self.loss):
            done = peer.done
            self.later(lambda: self.b.ack(qp, done))

    def _answer(self, peer: Responder, tx: dict[str, Any], probe: bool = False) -> None:
        rng = self.rng
        if not self.calm and rng.random() < self.loss * 2:
            return
        e = (peer.cack + 1) & M24
        top = (peer.newest - 63) & M24
        base = top if (top - e) & M24 < 1 << 23 and not probe and rng.random() < 0.7 else e
        if rng.random() < 0.2 and not probe:
            base = (e + 64 * rng.randrange(2)) & M24
        bitmap = sum(1 << i for i in range(64) if (base + i) & M24 in peer.above)
        mflag = MFlag.NONE if self.calm or rng.random() > 0.1 else rng.choice((1, 1, 1, 2, 3))
        cack, rcvd = peer.cack, peer.total
        mpr = 0 if self.configs[tx["qp"]].get("req_mpr", 128) % 128 else 1
        cause = dict(tx)
        if not self.calm and rng.random() < 0.05:
            cause["stamp"] = rng.choice((0, cause["stamp"] ^ 1))
        probe_id = tx["ext"]["probe"]["probe_id"] if probe else None
        self.later(lambda: self.b.sack(tx["qp"], cack, cause=cause, base=base, bitmap=bitmap, rcvd=rcvd, mpr=mpr, mflag=int(mflag), probe_id=probe_id))

    def _forge(self) -> None:
        """Feedback that nobody sent, near the truth or far from it."""
        rng, b = self.rng, self.b
        qp = rng.randrange(b.params.qps)
        ctx = next((r["ctx"] for r in reversed(b.records) if r["qp"] == qp), None)
        if ctx is None:
            return
        checks = {"known": int(rng.random() > 0.1), "addr_ok": int(rng.random() > 0.1), "pkey_ok": int(rng.random() > 0.1)}
        near = (ctx["unack_psn"] + rng.choice((-(1 << 15) - 1, -(1 << 15), -5, -1, 0, 0, 0))) & M24
        if rng.random() < 0.5:
            near = (ctx["next_psn"] - 1 + rng.choice((0, 1))) & M24 if rng.random() < 0.3 else near
        tx = dict(rng.choice(b.sent)) if b.sent else {"qp": qp, "ev": 0, "psn": near, "stamp": 0}
        tx.setdefault("stamp", 0)
        kind = rng.randrange(5 if self.fatal else 4)
        if kind == 0:
            tx["ev"] ^= rng.choice((0, 1, 1 << 31))
            b.sack(qp, near, cause=tx, rcvd=(ctx["rcvd_seen"] + rng.choice((-1, 0, 1 << 12))) * 256, bitmap=0,
                   base=(near + rng.choice((1, 1, 30, -30))) & M24, mflag=rng.randrange(4), **checks)  # fmt: skip
        elif kind == 1:
            b.sack(qp, near, cause=tx, rcvd=ctx["rcvd_seen"] * 256, probe_id=rng.choice((ctx["tail_slot"]["id"], ctx["ev_slot"]["id"], 1)), **checks)
        elif kind == 2:
            b.nack({**tx, "qp": qp}, rng.choice((1, 2, 6, 0x0B, 0x33)), **checks)
        elif kind == 3:
            b.ack(qp, (ctx["next_psn"] + rng.randrange(-4, 4)) & M24, rng.choice((0x1F, 0x20, 0x60)), **checks)
        else:
            b.ack(qp, (ctx["next_psn"] + rng.choice((0, 1, 40))) & M24, rng.choice((0x61, 0x62, 0x63)), **checks)

    # --- host ----------------------------------------------------------------------------------------------------------------------------------
    def _host(self) -> None:
        rng, b = self.rng, self.b
        qp = rng.randrange(b.params.qps)
        draw = rng.random()
        if draw < 0.85:
            if self.posting:
                self.post(qp)
        elif draw < 0.90:
            self._command(Command.EV_STATE, qp, rng.randrange(b.params.total_evs + 1), fixed.EV_STATE_CONFIG, denied=int(rng.random() < 0.4))
        elif draw < 0.93:
            self._command(Command.PORT, 0, rng.randrange(b.params.planes + 1), fixed.PORT_CONFIG, up=int(rng.random() < 0.7))
        elif draw < 0.95:
            self._command(Command.MODIFY, qp, 0, fixed.MODIFY_CONFIG, state=rng.choice((1, 2, 3, 5, 7)) if rng.random() < 0.9 or not self.fatal else 4)
        elif draw < 0.96:
            self._command(rng.choice((Command.SET_QP, Command.SET_GLOBAL)), qp, 0, fixed.QP_CONFIG)
        elif qp not in self.pending_reset:
            state = next((r["ctx"]["state"] for r in reversed(b.records) if r["qp"] == qp), None)
            if state == QpState.ERROR:
                self._reset(qp)
            elif self.fatal and rng.random() < 0.3:
                if rng.random() < 0.5:
                    b.peer_errors.append(qp)
                else:
                    if rng.random() < 0.5:
                        self._command(Command.MODIFY, qp, 0, fixed.MODIFY_CONFIG, state=int(QpState.ERROR))
                    self._reset(qp)

    def _reset(self, qp: int) -> None:
        self._command(Command.MODIFY, qp, 0, fixed.MODIFY_CONFIG, state=int(QpState.RESET))
        self.pending_reset[qp] = 0
        self.peers[qp].dead = True

    def post(self, qp: int) -> None:
        """A work request of a random length around the interesting ones."""
        rng = self.rng
        mtu = 256 << self.configs.get(qp, {}).get("mtu", 2)
        length = rng.choice((0, 1, 2, 3, mtu - 1, mtu, mtu + 1, 3 * mtu, rng.randrange(1, 20 * mtu), rng.randrange(1, 6 * mtu)))
        self._command(Command.POST, qp, 0, fixed.WORK_REQUEST, imm_valid=int(rng.random() < 0.4), imm=rng.getrandbits(32), length=length,
                      raddr=rng.getrandbits(64), laddr=rng.getrandbits(40), rkey=rng.getrandbits(32), wr_id=rng.getrandbits(64))  # fmt: skip

    def _command(self, op: Command, qp: int, index: int, layout: Any, **values: int) -> None:
        self.b.cmds.append({"op": int(op), "qp": qp, "index": index, "data": pack(layout, values)})

    def _finish_reset(self) -> None:
        """After a RESET was answered: configures the QP again and takes it to RTS."""
        b = self.b
        for qp, started in list(self.pending_reset.items()):
            state = next((r["ctx"]["state"] for r in reversed(b.records) if r["qp"] == qp), None)
            if not started and state == QpState.RESET and not b.cmds:
                self.pending_reset[qp] = 1
                config = self.configs[qp] = {**self.configs[qp], "sq_psn": self.rng.getrandbits(24)}
                self._command(Command.MODIFY, qp, 0, fixed.MODIFY_CONFIG, state=int(QpState.INIT))
                self._command(Command.SET_QP, qp, 0, fixed.QP_CONFIG, **{**QP, **config})
                for evi in range(b.params.total_evs):
                    self._command(Command.SET_EV, qp, evi, fixed.EV_CONFIG, value=b.ev_value(qp, evi), active=int(evi % b.params.evs < (self.active or 1)))
                self._command(Command.MODIFY, qp, 0, fixed.MODIFY_CONFIG, state=int(QpState.RTR))
                self._command(Command.MODIFY, qp, 0, fixed.MODIFY_CONFIG, state=int(QpState.RTS))
            elif started and state == QpState.RTS and not b.cmds:
                del self.pending_reset[qp]
                self.peers[qp] = Responder(self.configs[qp]["sq_psn"])
