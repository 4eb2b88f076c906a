"""A simulation of the send path: descriptors and payload in, frames per plane and departures out, compared with the golden codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from amaranth.sim import Simulator

from hdl.params import Params, preset
from hdl.wire.egress import Egress
from model import spec, wire, wire_packet
from model.spec import Ecn, Opcode
from model.tests.wire_cases import unique_packet
from model.wire import Packet, WireConfig
from verif.wire.agents import (
    CONFIG,
    LOCAL_IP4,
    LOCAL_IP6,
    LOCAL_MAC,
    PEER_IP4,
    PEER_IP6,
    PEER_MAC,
    collect,
    global_config,
    kind_of,
    packet_ext,
    qp_config,
    send,
)

TINY = preset("tiny")
CLOCK_LIMIT = 20_000  # no test here needs more
Go = Callable[[], bool]
Item = tuple[Packet, int, int]  # packet, plane, QP index


def always() -> bool:
    return True


def outgoing(opcode: int, plane: int = 0, qp: int = 1, seed: int = 0, *, ipv4: bool = False, config: WireConfig = CONFIG, **changes: Any) -> Packet:
    """The packet that leaves for a descriptor with unique fields: what the egress fills in is as it must be, the timestamp is 0."""
    data = opcode in spec.DATA_OPCODES
    out = unique_packet(
        opcode, int(data), seed, ipv4=ipv4, pkey=0x8765, dest_qp=0x5A0312 + qp, se=0, m=0, var=0, r=0, tsr=0, hop_limit=config.hop_limit,
        smac=LOCAL_MAC + plane, dmac=PEER_MAC + plane, src_ip=(LOCAL_IP4 if ipv4 else LOCAL_IP6) + plane,
        dst_ip=(PEER_IP4 if ipv4 else PEER_IP6) + plane, ev=0x1234 + seed if ipv4 else 0xABCD1234 + seed, udp_dport=config.udp_port,
        a=~seed >> 1 & 1, rtx=seed & 1,
        **{**({"payload": bytes((7 * i + seed) & 0xFF for i in range(5 + seed))} if data else {}), **changes},
    )  # fmt: skip
    if opcode in (Opcode.SACK, Opcode.NACK, Opcode.PROBE):
        out = replace(out, spdcid=TINY.qpn_base + qp, dpdcid=(0x5A0312 + qp) & 0xFFFF)
    ect = data or opcode == Opcode.PROBE
    dscp = config.dscp[wire_packet.traffic_class(opcode, out.rtx)]
    return replace(out, dscp=dscp, ecn=Ecn.ECT0 if ect else Ecn.NOT_ECT, tx_timestamp=0)


def descriptor(packet: Packet, plane: int = 0, qp: int = 1, wr_stamp: int = 0, params: Params = TINY) -> dict[str, Any]:
    """layouts.tx for ``packet``; fields that the egress fills in hold something else on purpose."""
    junk = {"spdcid": 0xDEAD, "dpdcid": 0xBEEF, "tx_timestamp": 0x7777, "tsr": 1}
    ext = packet_ext(packet)
    ext |= {name: value for name, value in junk.items() if name in ext}
    return {
        "qp": qp, "plane": plane, "ev": packet.ev, "evi": plane * params.evs, "opcode": packet.opcode, "a": packet.a, "rtx": packet.rtx,
        "psn": packet.psn, "laddr": 0, "plen": len(packet.payload), "send_tick": packet.psn & 0xFFFF, "wr_stamp": wr_stamp,
        "ext": {kind_of(packet.opcode): ext},
    }  # fmt: skip


def words_of(payload: bytes, width: int = 64, error: bool = False) -> list[dict[str, int]]:
    """A payload as the host read delivers it. What lies behind its end is noise: the builder must not send it."""
    size = width // 8
    parts = [payload[i : i + size] for i in range(0, len(payload), size)]
    return [{"data": int.from_bytes(p.ljust(size, b"\xee"), "little"), "last": int(i == len(parts) - 1), "error": int(error and i == len(parts) - 1)}
            for i, p in enumerate(parts)]  # fmt: skip


class Bench:
    """The egress with collectors on every output. A test adds ``drive`` testbenches; ``finish`` waits until all is quiet."""

    def __init__(self, *, params: Params = TINY, config: WireConfig = CONFIG, ipv4: tuple[bool, ...] = (False, False),
                 tx_go: Go = always, depart_go: Go = always, payload_go: Go = always, tick_start: int = 0, tick_runs: bool = True) -> None:  # fmt: skip
        self.params, self.config, self.ipv4 = params, config, ipv4
        self.dut = dut = Egress(params)
        planes = range(params.planes)
        self.beats: list[list[Any]] = [[] for _ in planes]
        self.departs: list[Any] = []
        self.words: list[dict[str, int]] = []  # payload still to be delivered
        self.log: list[str] = []
        self.lost = [0 for _ in planes]
        self.sent_frames = [0 for _ in planes]
        self.sent_bytes = [0 for _ in planes]
        self.drops = 0
        self.clock = 0
        self.configured = False
        self.tx_stalled: Callable[[int], bool] = lambda n: False  # a test sets which port takes nothing
        self.tick_start, self.tick_runs = tick_start, tick_runs
        self.sim = Simulator(dut)
        self.sim.add_clock(1e-6)
        for n in planes:
            self.sim.add_testbench(partial(collect, stream=dut.tx[n], out=self.beats[n], go=partial(self._tx_go, n, tx_go), log=self.log), background=True)
        self.sim.add_testbench(partial(collect, stream=dut.depart, out=self.departs, go=depart_go, log=self.log), background=True)
        self.sim.add_testbench(self._watch, background=True)
        self.sim.add_testbench(partial(self._payload, go=payload_go), background=True)

    def _tx_go(self, plane: int, go: Go) -> bool:
        return not self.tx_stalled(plane) and go()

    async def _payload(self, ctx: Any, go: Go) -> None:
        while True:
            if self.words:
                await send(ctx, self.dut.payload, [self.words.pop(0)], go)
            else:
                await ctx.tick()

    async def _watch(self, ctx: Any) -> None:
        dut = self.dut
        while True:
            ctx.set(dut.tick, self.tick_start + self.tick_runs * (self.clock // 4))
            await ctx.tick()
            self.clock += 1
            assert self.clock < CLOCK_LIMIT, "something waits for ever"
            for n in range(self.params.planes):
                self.lost[n] += ctx.get(dut.tx_dropped[n])
                self.sent_frames[n] += ctx.get(dut.tx_frame[n])
                self.sent_bytes[n] += ctx.get(dut.tx_bytes[n])
            self.drops += ctx.get(dut.drop.valid)

    async def configure(self, ctx: Any) -> None:
        dut = self.dut
        ctx.set(dut.global_config, global_config(self.config))
        ctx.set(dut.up, (1 << self.params.planes) - 1)
        for qp, ipv4 in enumerate(self.ipv4):
            ctx.set(dut.cfg_wr, {"valid": 1, "qp": qp, "data": qp_config(ipv4, dest_qpn=0x5A0312 + qp)})
            await ctx.tick()
        ctx.set(dut.cfg_wr.valid, 0)
        await ctx.tick()
        self.configured = True

    async def quiet(self, ctx: Any, clocks: int = 60) -> None:
        """Returns when nothing has come out for a while."""
        still, seen = 0, -1
        while still < clocks:
            await ctx.tick()
            now = sum(map(len, self.beats)) + len(self.departs) + sum(self.lost) - len(self.words)
            still, seen = (still + 1, seen) if now == seen else (0, now)

    async def requests(self, ctx: Any, items: list[Item], go: Go = always, *, obey: bool = False, error: bool = False) -> None:
        """Sends descriptors (packet, plane, qp) of the requestor with their payload. ``obey``: only when the port has room, as the requestor does."""
        for packet, plane, qp in items:
            while obey and not ctx.get(self.dut.room_req[plane]):
                await ctx.tick()
            self.words += words_of(packet.payload, self.params.data_width, error)
            await send(ctx, self.dut.tx_req, [descriptor(packet, plane, qp)], go)

    async def answers(self, ctx: Any, items: list[Item], go: Go = always, wr_stamp: int = 0) -> None:
        """Sends descriptors of the responder."""
        for packet, plane, qp in items:
            await send(ctx, self.dut.tx_rsp, [descriptor(packet, plane, qp, wr_stamp)], go)

    def frames(self, plane: int) -> list[bytes]:
        """Frames that left ``plane``; one that was cut is marked by an empty frame."""
        out, now = [], b""
        for beat in self.beats[plane]:
            keep = beat["keep"]
            assert keep and keep & keep + 1 == 0 and (beat["last"] or keep == 0xFF or self.params.port_width > 64), beat
            now += beat["data"].to_bytes(self.params.port_width // 8, "little")[: keep.bit_length()]
            if beat["last"]:
                out.append(b"" if beat["bad"] else now)
                now = b""
        assert now == b"", "a frame without end"
        return out

    def stamped(self, items: list[Item]) -> list[Packet]:
        """The requestor's packets with the timestamps that their departures report; the departures must match them."""
        assert len(self.departs) == len(items)
        out = []
        for (packet, plane, qp), depart in zip(items, self.departs, strict=True):
            assert depart["tick"] != 0
            assert depart == {
                "qp": qp, "probe": int(packet.opcode == Opcode.PROBE), "psn": packet.psn, "evi": plane * self.params.evs,
                "send_tick": packet.psn & 0xFFFF, "tick": depart["tick"], "dropped": 0, "read_error": 0,
            }  # fmt: skip
            out.append(replace(packet, tx_timestamp=depart["tick"]))
        return out

    def check(self, requests: list[Item], answers: list[Item]) -> None:
        """Every plane carries exactly the frames of both lists, each list in its order, and the counters agree."""
        stamped = [(p, plane) for p, (_, plane, _) in zip(self.stamped(requests), requests, strict=True)]
        for n in range(self.params.planes):
            data = [wire.build(p, self.config) for p, plane in stamped if plane == n]
            acks = [wire.build(p, self.config) for p, plane, _ in answers if plane == n]
            got = self.frames(n)
            is_data = [frame in set(data) for frame in got]
            assert [f for f, d in zip(got, is_data, strict=True) if d] == data
            assert [f for f, d in zip(got, is_data, strict=True) if not d] == acks
            assert self.sent_frames[n] == len(got) and self.sent_bytes[n] == sum(map(len, got))
            assert self.lost[n] == 0
        assert self.log == []
        assert self.drops == 0


def run(requests: list[Item], answers: list[Item], *, answer_go: Go = always, request_go: Go = always,
        **options: Any) -> Bench:  # fmt: skip
    """Sends everything, checks everything."""
    bench = Bench(**options)

    async def drive(ctx: Any) -> None:
        await bench.configure(ctx)
        await bench.requests(ctx, requests, request_go)
        await bench.quiet(ctx)

    async def drive_answers(ctx: Any) -> None:
        while not bench.configured:
            await ctx.tick()
        await bench.answers(ctx, answers, answer_go)

    bench.sim.add_testbench(drive)
    bench.sim.add_testbench(drive_answers)
    bench.sim.run()
    bench.check(requests, answers)
    return bench


def data(size: int, plane: int = 0, psn: int = 0) -> Item:
    """A data descriptor of QP 0."""
    return outgoing(Opcode.WRITE_ONLY, plane, 0, payload=bytes((psn + 3 * i) & 0xFF for i in range(size)), psn=psn), plane, 0


def simulate(bench: Bench, *drives: Any) -> Bench:
    """Runs the testbenches ``drives`` on ``bench``; the streams must have kept their rules."""
    for drive in drives:
        bench.sim.add_testbench(drive)
    bench.sim.run()
    assert bench.log == []
    return bench
