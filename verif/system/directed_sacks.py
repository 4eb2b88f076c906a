"""Directed scenarios: every trigger of a SACK, one stimulus at a time.

The peer is scripted: data frames and probes are forged and delivered to B, so that each stimulus is alone. A, whose QP sends nothing, refuses
the SACKs (SACK_RANGE) and ACKs (ACK_IGNORED) that come of it.
"""

from __future__ import annotations

from typing import Any

from model.spec import Drop, Ecn, Kind, MFlag, Opcode
from verif.system.env import GUARD_BYTE, RKEY, A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import RSP, Watch, after, forge, need

START = 0xFFFFFA
SIZE = 200


class Peer:
    """Forges one-packet writes from A to B. Message n is PSN START + n."""

    def __init__(self, s: System, w: Watch, count: int) -> None:
        self.s, self.w = s, w
        self.at = s.target(B, SIZE * count)
        self.tick = 100
        self.seen = 0

    async def data(self, n: int, **fields: Any) -> list[dict[str, Any]]:
        """Packet ``n`` arrives; returns the SACKs that follow until all is quiet, as bodies of their EMIT_SACK records."""
        self.tick += 1
        payload = bytes([n + 1]) * SIZE
        known: dict[str, Any] = {"psn": after(START, n), "msn": n, "ts": 1, "tx_timestamp": self.tick, "va": self.at + SIZE * n, "rkey": RKEY + 256 * B,
                                 "dmalen": SIZE, "ev": 0xC000_0000 + n, "ecn": int(Ecn.ECT0), "payload": payload}  # fmt: skip
        forge(self.s, B, Opcode.WRITE_ONLY, **(known | fields))
        return await self.sacks()

    async def sacks(self) -> list[dict[str, Any]]:
        """SACKs since the last call."""
        await self.w.rest(1500)
        found = [r.body for r in self.w.records(B, Kind.EMIT_SACK)]
        new, self.seen = found[self.seen :], len(found)
        return [body | body["answer"] for body in new]

    def written(self, *numbers: int) -> None:
        """Exactly these packets are in B's memory."""
        for n in numbers:
            need(self.s.native.read(B, self.at + SIZE * n, SIZE) == bytes([n + 1]) * SIZE, f"payload of packet {n} in memory")
        end = self.at + SIZE * (max(numbers) + 1)
        need(self.s.native.read(B, end, 16) == bytes([GUARD_BYTE]) * 16, "nothing behind it")


async def _peer(s: System, w: Watch, **glob: int) -> Peer:
    await s.connect(psn_a=START, psn_b=0, mtu=0, glob={"sack_threshold": 4096, **glob})
    return Peer(s, w, 16)


@scenario(presets=("tiny",))
async def sack_triggers(s: System) -> None:
    """Threshold, A, CE, rtx, duplicates behind and above, probe, prev_ar: one SACK each, with the fields of its cause; without a cause none.

    MRC-REQ-204, 210..225, 252 and R-12, R-14.
    """
    w = Watch(s)
    peer = await _peer(s, w, sack_flush_time=0)

    def one(sacks: list[dict[str, Any]], why: str, **fields: Any) -> None:
        need(len(sacks) == 1 and all(sacks[0][name] == value for name, value in fields.items()), f"one SACK by {why}, with {fields}", sacks)

    for n in range(3):
        need(await peer.data(n) == [], "no SACK without a trigger")
    one(await peer.data(3), "threshold", soft=1, reason=0, pr=0, mflag=0, psn=after(START, 3), tick=peer.tick, ev=0xC000_0003, cack_psn=after(START, 3))
    one(await peer.data(4, a=1), "A", soft=0, base_at_epsn=0, psn=after(START, 4), tick=peer.tick, ooo_count=0)
    one(await peer.data(5, ecn=int(Ecn.CE)), "CE", soft=0, mflag=int(MFlag.SKIP_ONCE), psn=after(START, 5))
    one(await peer.data(6, rtx=1), "rtx", soft=0, mflag=0, psn=after(START, 6))
    before = len(w.packets(B, Opcode.ACK))
    one(await peer.data(5), "a duplicate behind", soft=0, base_at_epsn=1, psn=after(START, 5), ack_psn_offset=0xFFFF, sack_offset=1)
    need(len(w.packets(B, Opcode.ACK)) == before + 1, "the newest ACK again")
    # 7 and 8 are missing; 9 is held.
    need(await peer.data(9) == [], "a gap alone is no trigger")
    one(await peer.data(9), "a duplicate above", soft=0, base_at_epsn=1, sack_offset=1, sack_bitmap=4, ooo_count=1, cack_psn=after(START, 6))
    before = len(w.packets(B, Opcode.ACK))
    forge(s, B, Opcode.PROBE, probe_id=0x8123, tx_timestamp=77, ev=0xC000_7777, ecn=int(Ecn.ECT0))
    one(await peer.sacks(), "a probe", soft=0, pr=1, ack_psn_offset=0x8123, tick=77, ev=0xC000_7777, base_at_epsn=1)
    need(len(w.packets(B, Opcode.ACK)) == before + 1, "the newest ACK beside it")
    one(await peer.data(10, a=1), "A behind a gap", soft=0, ooo_count=2)
    need(await peer.data(7) == [], "prev_ar waits for the last gap")
    one(await peer.data(8), "prev_ar", soft=1, ooo_count=0, cack_psn=after(START, 10), psn=after(START, 8))
    forge(s, B, Opcode.PROBE, probe_id=1, tx_timestamp=78, ev=0xC000_7777, ecn=int(Ecn.CE))
    one(await peer.sacks(), "a marked probe", pr=1, mflag=int(MFlag.SKIP_ONCE))
    peer.written(*range(11))
    counters = await s.counters(B)
    need(counters["drop_duplicate"] == 2 and len(w.records(B, Kind.RECEIVE, write=1)) == 11, "two duplicates, eleven packets written")
    at_a = await s.counters(A)
    need(at_a["drop_sack_range"] == len(w.packets(B, Opcode.SACK)) and at_a["drop_ack_ignored"] > 0, "A refuses what it never asked for", at_a)


@scenario(presets=("tiny",))
async def sack_flush(s: System) -> None:
    """A single packet without a trigger: one SACK after the flush time, with its fields; four packets and one more: threshold, then flush.

    MRC-REQ-210..215 and R-13.
    """
    w = Watch(s)
    peer = await _peer(s, w, sack_flush_time=50)
    sacks = await peer.data(0)
    need(len(sacks) == 1 and sacks[0]["soft"] == 1 and sacks[0]["tick"] == peer.tick and sacks[0]["psn"] == START, "one soft SACK by the flush timer", sacks)
    arrival, flush = w.records(B, Kind.RECEIVE)[0], w.records(B, Kind.FLUSH)
    need(len(flush) == 1 and 50 <= flush[0].tick - arrival.tick <= 60, "the flush 50 ticks after the packet", (arrival.tick, flush))
    for n in range(1, 6):
        peer.tick += 1
        forge(s, B, Opcode.WRITE_ONLY, delay=n * 60, psn=after(START, n), msn=n, ts=1, tx_timestamp=peer.tick, va=peer.at + SIZE * n,
              rkey=RKEY + 256 * B, dmalen=SIZE, ev=0xC000_0000 + n, payload=bytes([n + 1]) * SIZE)  # fmt: skip
    sacks = await peer.sacks()
    causes = [(body["psn"], body["soft"]) for body in sacks]
    need(causes == [(after(START, 4), 1), (after(START, 5), 1)], "the fourth fills the count, the flush tells the fifth", causes)
    need(len(w.records(B, Kind.FLUSH)) == 2, "two flushes")
    peer.written(*range(6))


@scenario(presets=("tiny",))
async def no_timestamp(s: System) -> None:
    """Data without TSETH: accepted, written, acknowledged with timestamp 0; a probe's echo is its own. MRC-REQ-003, 062."""
    w = Watch(s)
    peer = await _peer(s, w)
    for n in range(4):
        sacks = await peer.data(n, ts=0, tx_timestamp=0, a=n & 1)
        need(len(sacks) == 1 and sacks[0]["tick"] == 0, "a SACK with timestamp 0", sacks)
    need([p.echo_timestamp for p in w.packets(B, Opcode.SACK)] == [0] * 4, "four SACKs with echo 0")
    need(all(r.body["rx"]["ts"] == 0 and r.body["drop"] == 0xFF for r in w.records(B, Kind.RECEIVE)), "four packets without TSETH accepted")
    size = 8 + 12 + 4 + 16 + SIZE + 4 + 40  # without the four bytes of TSETH
    need(w.context(w.now(B, RSP))["rcvd_bytes"] == 4 * size, "sizes without TSETH", w.context(w.now(B, RSP))["rcvd_bytes"])
    peer.written(*range(4))


@scenario(presets=("tiny",))
async def out_of_window(s: System) -> None:
    """Data beyond the window: NACK PSN_OOR_WINDOW, nothing written; far behind: ancient; the edge of the window itself is accepted.

    MRC-REQ-193..196 and R-01.
    """
    w = Watch(s)
    peer = await _peer(s, w, sack_flush_time=0)
    need(await peer.data(0, psn=after(START, s.p.window), a=1) == [], "no SACK for what is beyond the window")
    nacks = w.packets(B, Opcode.NACK)
    need([(p.nack_psn, p.nack_reason, p.entropy) for p in nacks] == [(after(START, s.p.window), 0x0B, 0xC000_0000)], "NACK PSN_OOR_WINDOW", nacks)
    need(await peer.data(0, psn=after(START, -0x8001), a=1) == [], "silence for the ancient")
    sacks = await peer.data(1, psn=after(START, s.p.window - 1), a=1)
    need(len(sacks) == 1 and sacks[0]["ooo_count"] == 1, "the last PSN of the window is accepted", sacks)
    need([r.body["drop"] for r in w.records(B, Kind.RECEIVE)] == [Drop.OUT_OF_WINDOW, Drop.ANCIENT, 0xFF], "each counted under its cause")
    counters = await s.counters(A)
    need(counters["drop_nack_ignored"] == 1, "A ignores the NACK of what it never sent", counters)
    need(s.native.read(B, peer.at, SIZE) == bytes([GUARD_BYTE]) * SIZE, "nothing written at the refused address")
