"""Random arrivals for the responder bench: several QPs, reorder, loss and resend, duplicates, trims, CE, probes, bad packets, errors, RESET and reuse."""

from __future__ import annotations

import random
from typing import Any

from model import spec
from model.spec import Opcode, QpState
from verif.responder.bench import Bench

MTU = 256
M24 = spec.PSN_MASK


class Sender:
    """What one QP's peer sends: an endless list of messages, one PSN after the other, cut at MTU."""

    def __init__(self, qp: int, start: int, rng: random.Random) -> None:
        self.qp, self.start, self.rng = qp, start, rng
        self.packets: list[tuple[Opcode, dict[str, Any]]] = []
        self.msn = self.rqmsn = 0
        self.lost: list[int] = []  # indices that did not arrive (or were refused) and are to be sent again
        self.next = 0

    def packet(self, n: int) -> tuple[Opcode, dict[str, Any]]:
        """The n-th packet."""
        while len(self.packets) <= n:
            self._message()
        opcode, fields = self.packets[n]
        return opcode, fields | {"psn": self.start + n & M24}

    def _message(self) -> None:
        rng = self.rng
        count = rng.choice((1, 1, 1, 2, 3, 5, 20))
        length = (count - 1) * MTU + rng.randint(1, MTU)
        imm = rng.random() < 0.3
        base = {"rqmsn": self.rqmsn & 0xFFFF, "msn": self.msn & 0xFFFF, "dmalen": length, "rkey": 0x7700_0000 + self.qp}
        va = 0x10000 * (self.qp + 1) + rng.randint(0, 0x8000)
        for k in range(count):
            last = k == count - 1
            opcode = Opcode.WRITE_MIDDLE
            if count == 1:
                opcode = Opcode.WRITE_ONLY_IMM if imm else Opcode.WRITE_ONLY
            elif last:
                opcode = Opcode.WRITE_LAST_IMM if imm else Opcode.WRITE_LAST
            elif k == 0:
                opcode = Opcode.WRITE_FIRST
            plen = length - k * MTU if last else MTU
            self.packets.append((opcode, base | {"va": va + k * MTU, "plen": plen, "imm": rng.getrandbits(32) if last and imm else 0}))
        self.msn += 1
        self.rqmsn += imm


class Traffic:
    """Stimulus for :meth:`Bench.run`: ``frames`` random actions, then every lost packet until all QPs that live have everything."""

    def __init__(self, bench: Bench, frames: int, kill: float = 0.004, starts: tuple[int, ...] = (0xFFFFF0, 0x7FFFC1)) -> None:
        self.b, self.frames, self.left, self.kill = bench, frames, frames, kill
        self.rng = random.Random(bench.seed ^ 0x5EED)
        self.starts = starts
        self.senders: list[Sender] = []
        self.wr_id = 1000
        self.counts: dict[str, int] = {}
        bench.setup(sack_threshold=2048, sack_flush_time=30)
        for qp in range(bench.params.qps):
            self.senders.append(Sender(qp, starts[qp % len(starts)], self.rng))
            bench.connect(qp, self.senders[qp].start, receives=bench.params.rq_entries // 2)

    def __call__(self, b: Bench) -> bool:
        rng = self.rng
        if self.left > 0 and rng.random() < 0.02:
            self._surroundings()
        elif self.left == 0:
            b.up = b.room = (1 << b.params.planes) - 1
        if b.rx or b.cmd:
            return True
        if self.left > 0:
            self.left -= 1
            self._action(rng.randrange(b.params.qps))
            return True
        for sender in self.senders:
            if self._alive(sender) and self._resend(sender):
                return True
        return False

    def _surroundings(self) -> None:
        """Ports, room and path rows change under way."""
        b, rng = self.b, self.rng
        full = (1 << b.params.planes) - 1
        b.room = full if rng.random() < 0.5 else rng.getrandbits(b.params.planes)
        if rng.random() < 0.3:
            b.up = full if rng.random() < 0.7 else rng.getrandbits(b.params.planes)
        ones = (1 << b.params.evs) - 1
        row = b.row[rng.randrange(b.params.qps)][rng.randrange(b.params.planes)]
        row["good"], row["active"] = rng.getrandbits(b.params.evs), rng.getrandbits(b.params.evs) | rng.getrandbits(b.params.evs)
        row["denied"] = rng.choice((0, 0, 0, rng.getrandbits(b.params.evs), ones)) & ~row["good"]

    def _alive(self, sender: Sender) -> bool:
        return self.b.golden.model.qp[sender.qp].state in (QpState.RTR, QpState.RTS)

    def _act(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _send(self, sender: Sender, n: int, **extra: Any) -> None:
        opcode, fields = sender.packet(n)
        rng = self.rng
        common = {"plane": rng.randrange(self.b.params.planes), "ce": int(rng.random() < 0.05), "ev": rng.getrandbits(32),
                  "ts": int(rng.random() < 0.9), "tx_timestamp": rng.getrandbits(16)}  # fmt: skip
        fields = fields | common | extra
        self.b.frame(fields.pop("qp", sender.qp), fields.pop("opcode", opcode), fields.pop("psn"), **fields)

    def _resend(self, sender: Sender) -> bool:
        if not sender.lost:
            return False
        self._act("resend")
        self._send(sender, sender.lost.pop(self.rng.randrange(len(sender.lost))), rtx=1, a=1)
        return True

    def _action(self, qp: int) -> None:
        b, rng, sender = self.b, self.rng, self.senders[qp]
        model = b.golden.model.qp[qp]
        if not self._alive(sender):
            return self._revive(sender)
        got = model.cack_psn - sender.start + 1 & M24  # packets up to cack_psn
        kind = rng.random()
        overdue = self.kill and self.left < self.frames // 2 and not any(name.startswith("deadly") for name in self.counts)
        if kind < self.kill or overdue:
            return self._deadly(sender)
        if kind < 0.10 and self._resend(sender):
            return None
        if kind < 0.16:
            self._act("duplicate")
            return self._send(sender, max(0, sender.next - 1 - rng.randrange(40)), a=rng.getrandbits(1), trimmed=rng.choice((0, 0, 1)))
        if kind < 0.20:
            self._act("probe")
            return b.frame(qp, Opcode.PROBE, 0, plane=rng.randrange(b.params.planes), ce=rng.getrandbits(1), probe_id=rng.getrandbits(16))
        if kind < 0.23:
            return self._strange(sender, got)
        if kind < 0.26 and (model.rq_tail - model.rq_head) < b.params.rq_entries // 2:
            self._act("post_recv")
            for _ in range(rng.randrange(8)):
                self.wr_id += 1
                b.post_recv(qp, self.wr_id)
            return None
        if sender.next - got >= 128 or (sender.next - got >= 40 and rng.random() < 0.5):
            if not self._resend(sender):
                self._act("probe")
                b.frame(qp, Opcode.PROBE, 0, probe_id=rng.getrandbits(16))
            return None
        n, sender.next = sender.next, sender.next + 1
        fate = rng.random()
        if fate < 0.08:
            self._act("lost")
            sender.lost.append(n)
        elif fate < 0.12:
            self._act("trimmed")
            sender.lost.append(n)
            self._send(sender, n, trimmed=rng.choice((1, 2)), plen=0)
        else:
            self._act("new")
            self._send(sender, n, a=int(rng.random() < 0.1))
        return None

    def _strange(self, sender: Sender, got: int) -> None:
        """Frames that are dropped and leave the QP alive."""
        rng = self.rng
        psn = sender.start + got & M24
        what = rng.choice(("ahead", "ancient", "unknown", "address", "pkey", "far"))
        self._act(what)
        extra: dict[str, Any] = {
            "ahead": {"psn": psn + 128 + rng.randrange(200) & M24}, "ancient": {"psn": psn - 0x8001 - rng.randrange(1 << 20) & M24},
            "far": {"psn": psn + rng.choice((0x7FFFFF, 0x400000, -0x8000, -0x7FFF, -1, 127, 128)) & M24, "trimmed": 1},
            "unknown": {"known": 0}, "address": {"addr_ok": 0}, "pkey": {"pkey_ok": 0},
        }[what]  # fmt: skip
        self._send(sender, sender.next, **extra)

    def _deadly(self, sender: Sender) -> None:
        """What sends the QP to ERROR."""
        b, rng, qp = self.b, self.rng, sender.qp
        what = rng.choice(("rkey", "bounds", "length", "pad", "wimm", "host", "peer", "memory", "wrap"))
        self._act("deadly " + what)
        bad = {"rkey": {"rkey": 0x1234},
               "bounds": {"va": 0x10000 * (qp + 1) - 1}, "length": {"dmalen": 0}, "pad": {"udp_len": 63}, "wrap": {"va": (1 << 64) - 1},
               "wimm": {"opcode": Opcode.WRITE_ONLY_IMM, "rqmsn": sender.rqmsn + 1000 & 0xFFFF, "plen": 4, "dmalen": 4}}  # fmt: skip
        if what in bad:
            self._send(sender, sender.next, **bad[what])
        elif what == "host":
            b.modify(qp, QpState.ERROR)
        elif what == "peer":
            b.asked_peer.add(qp)
            b.peer_error.append(qp)
        else:
            b.wr_error.append(qp)

    def _revive(self, sender: Sender) -> None:
        """Some traffic to the QP in ERROR, then RESET and a new life."""
        b, rng, qp = self.b, self.rng, sender.qp
        if rng.random() < 0.7:
            self._act("to ERROR")
            if rng.getrandbits(1):
                b.frame(qp, Opcode.PROBE, 0, plane=rng.randrange(b.params.planes), addr_ok=int(rng.random() < 0.8))
            else:
                self._send(sender, sender.next)
            if rng.random() < 0.2:
                b.post_recv(qp, 7)
            return
        self._act("revive")
        b.modify(qp, QpState.RESET)
        sender.__init__(qp, rng.choice((0xFFFFF0, 0, rng.getrandbits(24))), rng)  # type: ignore[misc]
        b.connect(qp, sender.start, receives=b.params.rq_entries // 2)


