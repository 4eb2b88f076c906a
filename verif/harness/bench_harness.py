"""Inside the simulator: tests of the harness itself, around the stand-in for the NIC (fake_nic.sv)."""

from __future__ import annotations

import random
import time

import cocotb
from cocotb.triggers import RisingEdge

from hdl.host import regmap
from hdl.params import Params, preset
from hdl.trace import TraceLayouts
from model.spec import Drop, Ecn
from model.wire import Packet, build, parse
from verif.cases import this_run
from verif.harness.bench import clock_ns
from verif.harness.native import DATA, LOSSES, Native
from verif.harness.stream import BAD, SAME, Event, EventType, events

REG = {name: register.address for name, register in regmap.BY_NAME.items()}
RX_BASE = 0x10_0000
SEND, BREAK = 16, 17


class FakeSystem:
    """Two stand-ins: sends frames, keeps all events, knows what should arrive."""

    def __init__(self, dut: object, seed: int) -> None:
        params: Params = preset("tiny", trace=True)
        layouts = TraceLayouts(params)
        self.dut, self.rng = dut, random.Random(seed)
        self.native = Native(params.planes, 64, 64, 1 << 23, seed, layouts.req.size, layouts.rsp.size, clock_ns(params))
        self.native.completion_registers([REG[name] for name in ("CQ_INFO", "CQ_WR_ID_LO", "CQ_WR_ID_HI", "CQ_LENGTH", "CQ_IMM")], REG["CQ_POP"])
        self.events: list[Event] = []
        self.tag = 0
        for nic in (0, 1):
            self.write(nic, REG["DATA3"], RX_BASE)

    def write(self, nic: int, address: int, value: int) -> None:
        self.native.queue(nic, [(0, address, value, 15, 0, 0)])

    def send(self, nic: int, plane: int, frame: bytes, at: int) -> None:
        """A frame of a multiple of 8 bytes leaves ``nic``."""
        self.native.write(nic, at, frame)
        self.tag += 1
        for name, value in (("DATA0", at), ("DATA1", len(frame) // 8), ("DATA2", plane), ("CMD", SEND)):
            self.write(nic, REG[name], value)
        self.native.queue(nic, [(2, REG["CMD_STATUS"], 0, 1 << 31, self.tag, 10000)])

    async def run(self, **stop: int) -> None:
        """Until the stop condition; errors of the harness are collected like all events."""
        self.native.arm(**stop)
        await RisingEdge(self.dut.wake)
        self.events += list(events(self.native.drain()))

    def of(self, kind: EventType) -> list[Event]:
        return [event for event in self.events if event.type == kind]

    def no_errors(self) -> None:
        assert not self.of(EventType.ERROR), [event.data for event in self.of(EventType.ERROR)]


def data_frame(rng: random.Random, psn: int, words: int = 16, ipv4: bool = False, rtx: int = 0) -> bytes:
    """A sound WRITE ONLY, padded to a multiple of 8 bytes as Ethernet may."""
    packet = Packet(ev=0x1234_0000 | psn & 0xFFFF, psn=psn, ts=1, rtx=rtx, ecn=Ecn.ECT0, ipv4=ipv4, dmalen=8 * words, payload=rng.randbytes(8 * words))
    frame = build(packet)
    return frame + bytes(-len(frame) % 8)


@cocotb.test()
async def moves_frames(dut: object) -> None:
    """Frames of both NICs over both planes reach the other's memory, events agree with each other, counters add up; slow buses included."""
    run = this_run()
    system = FakeSystem(dut, run.seed)
    native = system.native
    native.capture(str(run.out / "plane"))
    for name in ("aw_gap", "w_gap", "b_gap", "ar_gap", "r_gap", "tx_stall", "rx_gap", "axil_gap"):
        native.set(name, 300_000)
    native.set("latency_max", 60)
    native.set("tx_lazy", 1, nic=1)
    native.set("tx_period", 3, nic=0, plane=1)
    frames: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(24):
        nic, frame = number & 1, data_frame(system.rng, number, 10 + number, ipv4=number % 3 == 0)
        frames[nic].append(frame)
        system.send(nic, number >> 1 & 1, frame, 0x1000 * (number + 1))
    await system.run(clock=100_000, completions=24)
    await system.run(clock=native.clock + 20_000, quiet=300)
    system.no_errors()
    assert native.counter("idle", 0) == 1 and native.counter("idle", 1) == 1
    sent, delivered, records = (system.of(kind) for kind in (EventType.SENT, EventType.DELIVERED, EventType.RECORD))
    assert len(sent) == len(delivered) == 24 and len(system.of(EventType.COMPLETION)) == 24 and len(records) == 48
    assert all(event.flags == SAME and not event.data for event in delivered)
    by_id = {event.id: event for event in sent}
    for nic in (0, 1):
        assert sorted(event.data for event in sent if event.nic == nic) == sorted(frames[nic])
        at = RX_BASE
        for event in (e for e in delivered if e.nic == nic):  # the stand-in takes frames in the order of delivery
            frame = by_id[event.id].data
            assert native.read(nic, at, len(frame) + 8) == frame + bytes(8)
            assert isinstance(parse(frame), Packet)
            at += 4096
        lengths = [int.from_bytes(e.data[12:16], "little") for e in system.of(EventType.COMPLETION) if e.nic == nic]
        assert lengths == [len(by_id[e.id].data) for e in delivered if e.nic == nic]
    for event in records:
        assert int.from_bytes(event.data[2:6], "little") == 1 + sum(e.clock < event.clock and e.nic == event.nic and e.part == event.part for e in records)
    native.capture("")
    size = sum(path.stat().st_size for path in run.out.glob("plane*_sent.pcap"))
    assert size == 2 * 24 + sum(16 + len(event.data) for event in sent)


@cocotb.test()
async def faults(dut: object) -> None:
    """Random faults: everything that enters the fabric leaves it or is counted as lost; the codec sees the faults that were made."""
    run = this_run()
    system = FakeSystem(dut, run.seed)
    native = system.native
    for name, value in (("drop", 100_000), ("corrupt", 100_000), ("duplicate", 100_000), ("reorder", 200_000), ("mark", 200_000), ("trim", 200_000),
                        ("trim_lasthop", 50_000), ("jitter", 50), ("trim_cut_lengths", 1)):  # fmt: skip
        native.set(name, value)
    native.set("delay", 20, plane=1)
    for number in range(60):
        system.send(0, number & 1, data_frame(system.rng, number, ipv4=number % 4 == 0), 0x1000 * (number + 1))
    await system.run(clock=200_000, answers=60)
    await system.run(clock=native.clock + 20_000, quiet=1000)
    system.no_errors()
    sent, delivered = system.of(EventType.SENT), system.of(EventType.DELIVERED)
    by_id = {event.id: event.data for event in sent}
    parsed = [parse(event.data or by_id[event.id]) for event in delivered]
    packets = [packet for packet in parsed if isinstance(packet, Packet)]
    total = {name: native.counter(name, 0, 0) + native.counter(name, 0, 1)
             for name in ("sent", "delivered", "duplicated", "dropped", "corrupted", "marked", "trimmed", "reordered", *LOSSES)}  # fmt: skip
    assert total["sent"] == len(sent) == 60 and total["delivered"] == len(delivered)
    assert total["sent"] + total["duplicated"] == total["delivered"] + sum(total[name] for name in LOSSES)
    assert len(system.of(EventType.LOST)) == total["dropped"]
    assert sum(isinstance(p, Drop) for p in parsed) == total["corrupted"]
    assert min(total[name] for name in ("dropped", "corrupted", "duplicated", "marked", "trimmed", "reordered")) > 0, total
    assert sum(p.trimmed > 0 for p in packets) >= total["trimmed"] and any(p.trimmed == 2 for p in packets)
    assert sum(p.ecn == Ecn.CE for p in packets) >= total["marked"] - total["corrupted"]
    order = [packet.psn for packet in packets]
    assert order != sorted(order)


@cocotb.test()
async def directed(dut: object) -> None:
    """Rules hit exactly what they name; ports go down and up; frames can be injected; broken reads are seen."""
    run = this_run()
    system = FakeSystem(dut, run.seed)
    native = system.native
    second = native.rule("drop", opcode=DATA, skip=1, count=1)
    psn = native.rule("duplicate", psn=5, argument=30)
    resent = native.rule("drop", rtx=1, count=None)
    path = native.rule("blackhole", ev=0x1234_0007, count=None)
    late = native.rule("delay", psn=4, argument=5000)
    flip = native.rule("corrupt", psn=6, argument=8 * 14 + 4)
    for number in range(8):
        system.send(0, 0, data_frame(system.rng, number, rtx=int(number == 3)), 0x1000 * (number + 1))
    await system.run(clock=50_000, answers=8)
    await system.run(clock=native.clock + 20_000, quiet=6000)
    system.no_errors()
    assert [native.rule_hits(rule) for rule in (second, psn, resent, path, late, flip)] == [1] * 6
    sent = {event.id: event for event in system.of(EventType.SENT)}
    numbers = {number: sorted(sent)[number] for number in range(8)}
    back = {event_id: number for number, event_id in numbers.items()}
    assert [back[event.id] for event in system.of(EventType.DELIVERED)] == [0, 2, 5, 5, 6, 4]
    flipped = next(event for event in system.of(EventType.DELIVERED) if event.id == numbers[6])
    assert [a ^ b for a, b in zip(flipped.data, sent[numbers[6]].data)] == [0] * 14 + [16] + [0] * (len(flipped.data) - 15)
    for rule in (resent, path):
        native.rule_clear(rule)

    system.events.clear()
    native.set("up", 0, nic=1, plane=1)
    system.send(0, 1, data_frame(system.rng, 20), 0x1000)
    system.send(0, 0, data_frame(system.rng, 21), 0x2000)
    await system.run(clock=native.clock + 20_000, answers=10)
    native.queue(1, [(1, REG["PORT_STATUS"], 0, 0, 99, 0)])
    await system.run(clock=native.clock + 20_000, answers=11)
    assert system.of(EventType.ANSWER)[-1].aux == 1 and native.counter("down", 0, 1) == 1
    native.set("up", 1, nic=1, plane=1)
    native.inject(1, 1, b"not a frame", delay=10, bad=True)
    native.error_range(0, 0x3000, 0x3100)
    system.send(0, 0, data_frame(system.rng, 22), 0x3000)
    await system.run(clock=native.clock + 20_000, quiet=2000)
    system.no_errors()
    assert [bytes(event.data) for event in system.of(EventType.DELIVERED) if event.flags & BAD] == [b"not a frame"]
    assert native.counter("bad", 0, 0) == 1 and native.counter("read_errors", 0) == 1

    for wrong in (lambda: native.set("no such thing", 1), lambda: native.set("drop", 1, plane=2), lambda: native.rule("explode"),
                  lambda: native.counter("nothing", 0), lambda: native.write(0, 1 << 23, b"x"), lambda: native.inject(0, 0, b"")):  # fmt: skip
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("a wrong argument was taken")


@cocotb.test()
async def bus_rules(dut: object) -> None:
    """A burst across 4 KiB is an error that stops the run."""
    run = this_run()
    system = FakeSystem(dut, run.seed)
    system.write(0, REG["CMD"], BREAK)
    await system.run(clock=10_000)
    (error,) = system.of(EventType.ERROR)
    assert error.nic == 0 and b"4 KiB" in error.data and system.native.clock < 1000


@cocotb.test()
async def speed(dut: object) -> None:
    """Says how many clocks a second the harness alone makes, idle and with traffic."""
    run = this_run()
    system = FakeSystem(dut, run.seed)
    start = time.perf_counter()
    await system.run(clock=100_000)
    idle = 100_000 / (time.perf_counter() - start)
    for number in range(200):
        for nic in (0, 1):
            system.send(nic, number & 1, data_frame(system.rng, number, 128), 0x1000)
    begin, start = system.native.clock, time.perf_counter()
    await system.run(clock=begin + 400_000, answers=400)
    busy = (system.native.clock - begin) / (time.perf_counter() - start)
    frames = len(system.of(EventType.SENT)) / (time.perf_counter() - start)
    system.no_errors()
    print(f"harness alone: {idle:.0f} clocks/s idle, {busy:.0f} clocks/s and {frames:.0f} frames/s with traffic", flush=True)
    assert idle > 20_000
