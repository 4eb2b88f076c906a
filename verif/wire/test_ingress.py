"""Ingress: merge of planes, the QP check, routing to the two owners, payload order."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from amaranth.sim import Simulator

from hdl.layouts import Layouts
from hdl.params import Params, preset
from hdl.wire.ingress import Ingress
from model import spec, wire, wire_switch
from model.spec import Drop, Opcode
from model.tests.wire_cases import unique_packet
from model.wire import Packet
from verif.wire.agents import (
    LOCAL_IP4,
    LOCAL_IP6,
    PEER_IP4,
    PEER_IP6,
    beats,
    coin,
    collect,
    global_config,
    golden,
    kind_of,
    packet_ext,
    pulses,
    qp_config,
    send,
    union_bits,
)

TINY = preset("tiny")
CLOCK_LIMIT = 20_000  # no test here needs more
FEEDBACK = (Opcode.SACK, Opcode.NACK, Opcode.ACK)
Go = Callable[[], bool]
QP_IPV4 = (False, True)  # of QP 0 and 1


def arriving(opcode: int, qp: int = 0, plane: int = 0, seed: int = 0, size: int = 0, **changes: Any) -> Packet:
    """A packet from the peer's plane ``plane`` to ours for QP index ``qp``."""
    ipv4 = QP_IPV4[qp & 1]
    values: dict[str, Any] = {
        "ipv4": ipv4, "src_ip": (PEER_IP4 if ipv4 else PEER_IP6) + plane, "dst_ip": (LOCAL_IP4 if ipv4 else LOCAL_IP6) + plane,
        "pkey": 0x8765, "dest_qp": TINY.qpn_base + qp, "ev": 77 + seed,
        "payload": bytes((seed + 5 * i) & 0xFF for i in range(size)),
    }  # fmt: skip
    return unique_packet(opcode, int(opcode in spec.DATA_OPCODES), seed, **(values | changes))


def expected_rx(packet: Packet, plane: int, *, known: int = 1, addr_ok: int = 1, pkey_ok: int = 1, params: Params = TINY) -> dict[str, int]:
    """What layouts.rx holds for ``packet``."""
    return {
        "qp": packet.dest_qp - params.qpn_base if known else 0, "known": known, "addr_ok": addr_ok, "pkey_ok": pkey_ok, "plane": plane,
        "trimmed": packet.trimmed, "ce": int(packet.ecn == spec.Ecn.CE), "ev": packet.ev, "udp_len": packet.udp_len, "opcode": packet.opcode,
        "a": packet.a, "rtx": packet.rtx, "ts": packet.ts, "psn": packet.psn,
        "plen": len(packet.payload) if packet.opcode in spec.DATA_OPCODES else 0,
        "ext": union_bits(Layouts(params).ext, kind_of(packet.opcode), packet_ext(packet)),
    }  # fmt: skip


class Run:
    """One simulation: a list of frames per plane in; both owners' streams, payload and drops out. The ``go`` functions stall the outputs."""

    def __init__(self, planes: list[list[bytes]], *, req_go: Go = lambda: True, rsp_go: Go = lambda: True, payload_go: Go = lambda: True,
                 gap: Go = lambda: True) -> None:  # fmt: skip
        self.planes, self.gap = planes, gap
        self.req_go, self.rsp_go, self.payload_go = req_go, rsp_go, payload_go
        self.req: list[Any] = []
        self.rsp: list[Any] = []
        self.words: list[Any] = []
        self.drops: list[list[Drop]] = [[] for _ in planes]
        self.log: list[str] = []
        self.frames = [0 for _ in planes]

    def run(self) -> Run:
        """Simulates until nothing has come out for a while."""
        dut, planes = Ingress(TINY), self.planes
        left = {"n": len(planes), "configured": 0}

        async def configure(ctx: Any) -> None:
            ctx.set(dut.global_config, global_config())
            for qp, ipv4 in enumerate(QP_IPV4):
                ctx.set(dut.cfg_wr, {"valid": 1, "qp": qp, "data": qp_config(ipv4)})
                await ctx.tick()
            ctx.set(dut.cfg_wr.valid, 0)
            left["configured"] = 1
            quiet, seen = 0, -1
            while quiet < 120 or left["n"]:
                await ctx.tick()
                now = len(self.req) + len(self.rsp) + len(self.words) + sum(map(len, self.drops))
                quiet, seen = (quiet + 1, seen) if now == seen else (0, now)

        async def feed(ctx: Any, n: int) -> None:
            while not left["configured"]:
                await ctx.tick()
            await send(ctx, dut.rx[n], [beat for frame in planes[n] for beat in beats(frame, TINY.port_width)], self.gap)
            left["n"] -= 1

        async def count(ctx: Any) -> None:
            for _ in range(CLOCK_LIMIT):
                await ctx.tick()
                for n in range(len(planes)):
                    self.frames[n] += ctx.get(dut.rx_frame[n])
            raise AssertionError("something waits for ever")

        sim = Simulator(dut)
        sim.add_clock(1e-6)
        sim.add_testbench(configure)
        for n in range(len(planes)):
            sim.add_testbench(partial(feed, n=n))
            sim.add_testbench(partial(pulses, port=dut.drop[n], out=self.drops[n]), background=True)
        for stream, out, go in ((dut.rx_req, self.req, self.req_go), (dut.rx_rsp, self.rsp, self.rsp_go),
                                (dut.payload, self.words, self.payload_go)):
            sim.add_testbench(partial(collect, stream=stream, out=out, go=go, log=self.log), background=True)
        sim.add_testbench(count, background=True)
        sim.run()
        assert self.log == []
        assert self.frames == [len(frames) for frames in planes]
        return self

    def payloads(self) -> list[bytes]:
        """The payloads of the stream, each padded to whole words."""
        out, now = [], b""
        for word in self.words:
            now += word["data"].to_bytes(8, "little")
            if word["last"]:
                out.append(now)
                now = b""
        assert now == b""
        return out


def test_qp_check() -> None:
    """Architecture, addresses of planes: known QP, addresses of any plane of the peer and of ours and of the right IP version, P_Key."""
    cases: list[tuple[Packet, dict[str, int]]] = []
    for qp, ipv4 in enumerate(QP_IPV4):
        peer, local = (PEER_IP4, LOCAL_IP4) if ipv4 else (PEER_IP6, LOCAL_IP6)
        for op in (Opcode.PROBE, Opcode.WRITE_ONLY):
            for src, dst, ok in ((0, 1, 1), (1, 0, 1), (2, 0, 0), (-1, 0, 0), (0, 2, 0), (0, -1, 0), (0x100, 0, 0), (0, 0x100, 0), (1 << 31, 0, 0)):
                cases.append((arriving(op, qp, src_ip=peer + src, dst_ip=local + dst), {"addr_ok": ok}))
            cases.append((arriving(op, qp, pkey=0x0765), {"pkey_ok": 0}))
            other = not ipv4  # the right numbers in the wrong IP version
            cases.append((arriving(op, qp, ipv4=other, src_ip=(PEER_IP6, PEER_IP4)[other], dst_ip=(LOCAL_IP6, LOCAL_IP4)[other]), {"addr_ok": 0}))
    for qpn in (TINY.qpn_base - 1, TINY.qpn_base + TINY.qps, TINY.qpn_base | 1 << 23, 0, spec.CONTROL_QPN):
        cases.append((arriving(Opcode.PROBE, 0, dest_qp=qpn), {"known": 0, "addr_ok": 0, "pkey_ok": 0}))
    result = Run([[], [wire.build(packet) for packet, _ in cases]]).run()
    assert result.rsp == [expected_rx(packet, 1, **flags) for packet, flags in cases]
    assert result.req == [] and result.drops == [[], []]


@pytest.mark.parametrize("seed", range(2))
def test_merge_under_back_pressure(seed: int) -> None:
    """X-01, X-10, MRC-REQ-034: both planes loaded, random stalls; each owner sees each plane's frames in order, payload in the order of the descriptors."""
    rng = random.Random(seed)
    planes: list[list[Packet]] = []
    for plane in range(2):
        packets = []
        for number in range(20):
            op = rng.choice((*FEEDBACK, Opcode.PROBE, *sorted(spec.DATA_OPCODES) * 2))
            size = rng.choice((0, 1, 8, 9, 30, 200)) if op in spec.DATA_OPCODES else 0
            packets.append(arriving(op, rng.randrange(2), plane, number, size))
        planes.append(packets)
    frames = [[wire.build(p) for p in packets] for packets in planes]
    frames[0].insert(7, frames[0][3][:-1] + bytes([frames[0][3][-1] ^ 1]))
    frames[1].insert(0, wire.build(arriving(Opcode.ENDPOINT_REQUEST)))
    result = Run(frames, req_go=coin(rng, 0.2), rsp_go=coin(rng, 0.3), payload_go=coin(rng, 0.6), gap=coin(rng, 0.8)).run()
    assert result.drops == [[Drop.ICRC], [Drop.OPCODE]]
    for plane, packets in enumerate(planes):
        for got, feedback in ((result.req, True), (result.rsp, False)):
            want = [expected_rx(p, plane) for p in packets if (p.opcode in FEEDBACK) == feedback]
            assert [rx for rx in got if rx["plane"] == plane] == want
    queues = [[p.payload for p in packets if p.opcode in spec.DATA_OPCODES and p.payload] for packets in planes]
    order = [queues[rx["plane"]].pop(0) for rx in result.rsp if rx["plen"]]
    assert result.payloads() == [payload.ljust(-(-len(payload) // 8) * 8, b"\0") for payload in order]


def test_planes_take_turns() -> None:
    """Fairness: with both planes loaded and one owner slow, frames alternate."""
    frames = [[wire.build(arriving(Opcode.PROBE, 0, plane, seed)) for seed in range(16)] for plane in range(2)]
    slow = {"n": 0}

    def seldom() -> bool:
        slow["n"] += 1
        return slow["n"] % 30 == 0

    result = Run(frames, rsp_go=seldom).run()
    planes = [rx["plane"] for rx in result.rsp]
    assert len(planes) == 32
    assert all(a != b for a, b in zip(planes[4:28], planes[5:29], strict=True)), planes


@pytest.mark.parametrize("stalled", ["rsp", "req"])
def test_a_busy_owner_does_not_hold_up_the_other(stalled: str) -> None:
    """One owner takes nothing until the other has got all its frames, which come over the other plane."""
    probes = [wire.build(arriving(Opcode.PROBE, 0, 0, seed)) for seed in range(12)]
    sacks = [wire.build(arriving(Opcode.SACK, 0, 1, seed)) for seed in range(12)]
    run = Run([probes, sacks])
    if stalled == "rsp":
        run.rsp_go = lambda: len(run.req) == 12
    else:
        run.req_go = lambda: len(run.rsp) == 12
    run.run()
    assert (len(run.rsp), len(run.req)) == (12, 12)


def test_trimmed_data_has_no_payload() -> None:
    """MRC-REQ-031: a trimmed packet goes to the responder without payload; the payload of its neighbours stays theirs."""
    data = [arriving(Opcode.WRITE_ONLY, 0, 0, seed, 20 + seed) for seed in range(3)]
    trimmed = wire_switch.trim(wire.build(data[1]))
    result = Run([[wire.build(data[0]), trimmed, wire.build(data[2])], []]).run()
    verdict = golden(trimmed)
    assert isinstance(verdict, Packet)
    assert result.rsp == [expected_rx(p, 0) for p in (data[0], verdict, data[2])]
    assert [p[:20] for p in result.payloads()] == [data[0].payload, data[2].payload[:20]]
