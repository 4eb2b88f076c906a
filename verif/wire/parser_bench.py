"""A simulation of the parser: frames in, everything that comes out, compared with the golden codec."""


from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from amaranth.sim import Simulator

from hdl.layouts import Layouts
from hdl.params import Params, preset
from hdl.wire.parser import Parser
from model import spec
from model.spec import Drop, Opcode
from model.tests.wire_cases import unique_packet
from model.wire import Packet, WireConfig
from verif.wire.agents import CONFIG, beats, collect, global_config, golden, kind_of, packet_ext, pulses, union_bits

TINY = preset("tiny")
CLOCK_LIMIT = 20_000  # no test here needs more


def expected_desc(packet: Packet, params: Params = TINY, plane: int = 1) -> dict[str, int]:
    """What layouts.rx_frame holds for ``packet``."""
    layout = Layouts(params).ext
    data = packet.opcode in spec.DATA_OPCODES
    return {
        "plane": plane, "trimmed": packet.trimmed, "ce": int(packet.ecn == spec.Ecn.CE), "ipv4": int(packet.ipv4), "src_ip": packet.src_ip,
        "dst_ip": packet.dst_ip, "ev": packet.ev, "udp_len": packet.udp_len, "opcode": packet.opcode, "pad": packet.pad, "pkey": packet.pkey,
        "dest_qp": packet.dest_qp, "a": packet.a, "rtx": packet.rtx, "ts": packet.ts, "psn": packet.psn,
        "plen": len(packet.payload) if data else 0, "ext": union_bits(layout, kind_of(packet.opcode), packet_ext(packet)),
    }  # fmt: skip


class Run:
    """One simulation: frames in, everything that comes out, and how long it took."""

    def __init__(self, frames: list[tuple[bytes, bool]], *, params: Params = TINY, config: WireConfig = CONFIG,
                 gap: Callable[[], bool] = lambda: True, desc_go: Callable[[], bool] = lambda: True,
                 payload_go: Callable[[], bool] = lambda: True, stallable: bool = True, tail: int = 80) -> None:  # fmt: skip
        dut = Parser(params, stallable=stallable)
        self.descs: list[Any] = []
        self.words: list[Any] = []
        self.drops: list[Drop] = []
        self.log: list[str] = []
        self.counted_frames = self.counted_bytes = self.clock = 0
        self.input_clocks = 0
        self.stalled = 0

        async def drive(ctx: Any) -> None:
            ctx.set(dut.global_config, global_config(config))
            ctx.set(dut.plane, 1)
            await ctx.tick()
            for frame, bad in frames:
                for beat in beats(frame, params.port_width, bad):
                    while not gap():
                        ctx.set(dut.rx.valid, 0)
                        await ctx.tick()
                    ctx.set(dut.rx.payload, beat)
                    ctx.set(dut.rx.valid, 1)
                    while True:
                        _, _, ready = await ctx.tick().sample(dut.rx.ready)
                        self.input_clocks += 1
                        if ready:
                            break
                        self.stalled += 1
            ctx.set(dut.rx.valid, 0)
            quiet, seen = 0, -1
            while quiet < tail:  # until nothing has moved for a while
                await ctx.tick()
                now = len(self.descs) + len(self.words) + len(self.drops)
                quiet, seen = (quiet + 1, seen) if now == seen else (0, now)

        async def count(ctx: Any) -> None:
            while True:
                _, _, frame, size = await ctx.tick().sample(dut.rx_frame, dut.rx_bytes)
                self.clock += 1
                assert self.clock < CLOCK_LIMIT, "something waits for ever"
                self.counted_frames += frame
                self.counted_bytes += size

        sim = Simulator(dut)
        sim.add_clock(1e-6)
        sim.add_testbench(drive)
        sim.add_testbench(partial(collect, stream=dut.desc, out=self.descs, go=desc_go, log=self.log), background=True)
        sim.add_testbench(partial(collect, stream=dut.payload, out=self.words, go=payload_go, log=self.log), background=True)
        sim.add_testbench(partial(pulses, port=dut.drop, out=self.drops), background=True)
        sim.add_testbench(count, background=True)
        sim.run()
        self.frames, self.config, self.params = frames, config, params

    def check(self) -> None:
        """Every frame came out as the model says, in order, and nothing else."""
        verdicts = [golden(frame, self.config, bad) for frame, bad in self.frames]
        packets = [v for v in verdicts if isinstance(v, Packet)]
        assert self.drops == [v for v in verdicts if isinstance(v, Drop)]
        assert self.descs == [expected_desc(p, self.params) for p in packets]
        size = self.params.data_width // 8
        words = []
        for packet in packets:
            payload = packet.payload if packet.opcode in spec.DATA_OPCODES else b""
            parts = [payload[i : i + size] for i in range(0, len(payload), size)]
            words += [{"data": int.from_bytes(p, "little"), "last": int(i == len(parts) - 1)} for i, p in enumerate(parts)]
        assert self.words == words
        assert self.counted_frames == len(self.frames)
        assert self.counted_bytes == sum(len(frame) for frame, _ in self.frames)
        assert self.log == []


def run(frames: list[bytes], **options: Any) -> Run:
    """Runs good and broken frames, none flagged by the MAC, and compares everything."""
    result = Run([(frame, False) for frame in frames], **options)
    result.check()
    return result


def write(size: int, **changes: Any) -> Packet:
    """A write packet with ``size`` bytes of payload."""
    payload = bytes((7 * i + size) & 0xFF for i in range(size))
    return unique_packet(Opcode.WRITE_ONLY, 1, payload=payload, **changes)
