"""Two connected endpoints over a link: what the endpoint's tests share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from model.config import EvConfig, GlobalConfig, QpConfig, Sizes, default_path_credit
from model.endpoint import Completion, Endpoint
from model.link import Faults, Link
from model.spec import Drop, Health, PostStatus, WcStatus

SIZES = Sizes(qps=2, planes=2, evs=2, active_evs=2)
MEMORY = 1 << 20
RKEY = 0x1234_567B  # its low bits name region 3
TARGET = 0x8_0000  # upper half of the memory receives
GUARD = 0xA5
IP6, IP4 = 0xFD00 << 112, 0x0A00_0000


class Pair:
    """Endpoints a and b, QP i of one connected to QP i of the other, memory guarded, and the messages that were posted."""

    def __init__(
        self, seed: int = 0, faults: Faults | Sequence[Faults] | None = None, sizes: Sizes = SIZES, start: int = 0, frames: bool = False,
        qp: dict[str, int] | None = None, glob: dict[str, int] | None = None, active: int | None = None, ipv4: int = 0,
    ) -> None:  # fmt: skip
        self.random = random.Random(f"pair {seed}")
        self.ends: list[Endpoint] = []
        psns = [[self.random.choice((0, 0xFFFFF0, 0xFFFFFF, self.random.randrange(1 << 24))) for _ in range(sizes.qps)] for _ in range(2)]
        active = sizes.active_evs if active is None else active
        for side in range(2):
            settings = GlobalConfig(local_ip6=IP6 + 0x100 * side, local_ip4=IP4 + 0x100 * side, local_mac=0x02_00_00_00_00_00 + 0x100 * side)
            end = Endpoint(sizes, settings.copy() if glob is None else replace(settings, **glob), MEMORY)
            end.memory[TARGET:] = bytes([GUARD]) * (MEMORY - TARGET)
            end.register(3, RKEY, TARGET, MEMORY - TARGET, va=0x5000_0000 + TARGET)
            for index in range(sizes.qps):
                peer = IP4 if ipv4 else IP6
                config = QpConfig(
                    dest_qpn=sizes.qpn_base + index, ipv4=ipv4, mtu=0, peer_ip=peer + 0x100 * (1 - side),
                    peer_mac=0x02_00_00_00_00_00 + 0x100 * (1 - side), sq_psn=psns[side][index], rq_psn=psns[1 - side][index],
                    req_mpr=sizes.window, rsp_mpr=sizes.window, cwnd=1 << 16, peer_max_wimm=sizes.max_wimm, ev_min_active=sizes.planes,
                    path_credit=default_path_credit(sizes.window, active * sizes.planes),
                )  # fmt: skip
                evs = [EvConfig(value=side << 28 | index << 20 | i << 16 | i, active=int(i % sizes.evs < active), health=Health.GOOD)
                       for i in range(sizes.total_evs)]  # fmt: skip
                end.configure_qp(index, config if qp is None else replace(config, **qp), evs, start)
            self.ends.append(end)
        self.a, self.b = self.ends
        self.link = Link(self.a, self.b, seed, faults, frames, start)
        self.posted: list[list[list[tuple[int, int, int, int | None]]]] = [[[] for _ in range(sizes.qps)] for _ in range(2)]
        self.done: list[list[Completion]] = [[], []]
        self.expected = [bytearray([GUARD]) * (MEMORY - TARGET) for _ in range(2)]
        self._source = [0, 0]
        self._target = [16, 16]  # guard bytes around every message

    def post(self, side: int, qp: int, length: int, imm: int | None = None, align: int = 0) -> PostStatus:
        """Post one message of random bytes from ``side``; a WriteIMM when ``imm`` is given, with a receive entry at the peer first."""
        end, peer = self.ends[side], self.ends[1 - side]
        source, target = self._source[side], self._target[side] + align
        data = self.random.randbytes(length)
        assert source + length <= TARGET and TARGET + target + length + 16 <= MEMORY, "the test posts more than the memory holds"
        end.write_memory(source, data)
        wr_id = len(self.posted[side][qp])
        if imm is not None:
            status = peer.post_recv(qp, 0x8000 + wr_id, self.link.now)
            if status != PostStatus.OK:
                return status
        raddr = 0x5000_0000 + TARGET + target
        if imm is None:
            status = end.post_write(qp, source, raddr, length, RKEY, wr_id, self.link.now)
        else:
            status = end.post_write_imm(qp, source, raddr, length, RKEY, imm, wr_id, self.link.now)
        if status == PostStatus.OK:
            self._source[side] += length
            self._target[side] = target + length + 16
            self.expected[1 - side][target : target + length] = data
            self.posted[side][qp].append((wr_id, length, target, imm))
        return status

    def collect(self) -> None:
        for side, end in enumerate(self.ends):
            self.done[side] += end.poll()

    def finished(self) -> bool:
        """Whether every message is reported at both ends, and every receive."""
        self.collect()
        want = [[sum(len(q) for q in self.posted[side]), sum(m[3] is not None for q in self.posted[1 - side] for m in q)] for side in range(2)]
        have = [[sum(not c.recv for c in self.done[side]), sum(c.recv for c in self.done[side])] for side in range(2)]
        return want == have

    def quiet(self) -> bool:
        """Finished, nothing on the way and everything acknowledged."""
        if not self.finished() or self.link.in_flight:
            return False
        return all(q.unretired == 0 and not q.probe_on for end in self.ends for q in end.requestor.qp)

    def check(self) -> None:
        """Exactly-once completions in order, memory byte for byte, and invariants 16 and 18."""
        for side in range(2):
            for index, messages in enumerate(self.posted[side]):
                sent = [c for c in self.done[side] if c.qp == index and not c.recv]
                assert [(c.wr_id, c.length, c.status) for c in sent] == [(m[0], m[1], WcStatus.SUCCESS) for m in messages]
                received = [c for c in self.done[1 - side] if c.qp == index and c.recv]
                wanted = [(m[1], m[3], WcStatus.SUCCESS) for m in messages if m[3] is not None]
                assert [(c.length, c.imm, c.status) for c in received] == wanted
            assert bytes(self.ends[side].memory[TARGET:]) == bytes(self.expected[side]), f"memory of end {side} differs"
            for q in self.ends[side].requestor.qp:
                assert (q.inflight, q.out, q.lost, q.unretired, q.tx_pending, q.timer_on) == (0, 0, 0, 0, 0, 0)
                assert [ev.credit for ev in q.ev] == [0] * len(q.ev)
            for r in self.ends[side].responder.qp:
                assert (r.ooo_count, r.rcvd, len(r.answers), r.ack_due) == (0, 0, 0, 0)
            for counts in self.link.counts[side]:
                assert counts.sent + counts.duplicated == counts.delivered + counts.dropped

    def settle(self, ticks: int = 3_000_000) -> None:
        """Run until quiet, then check."""
        assert self.link.run(ticks, self.quiet), f"not finished after {ticks} ticks: {self.state()}"
        self.check()

    def state(self) -> str:
        lines = [str(self.drops())]
        for side, end in enumerate(self.ends):
            for i, q in enumerate(end.requestor.qp):
                lines.append(f"end {side} QP {i}: state {q.state} next {q.next_psn:#x} unack {q.unack_psn:#x} out {q.out.bit_count()} lost "
                             f"{q.lost.bit_count()} inflight {q.inflight} done {q.msg_done}/{q.msg_tail} retry {q.retry}")  # fmt: skip
        return "\n".join(lines)

    def drops(self) -> list[dict[Drop, int]]:
        return [end.drops for end in self.ends]
