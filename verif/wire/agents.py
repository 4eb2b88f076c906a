"""Drivers and collectors of streams for Amaranth's simulator, and the golden view of frames and descriptors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from amaranth.lib import data

from hdl.layouts import GLOBAL_CONFIG, QP_CONFIG
from hdl.wire.headers import KNOWN_OPCODES
from model import spec, wire
from model.spec import Dscp, Opcode
from model.wire import Packet, WireConfig

CONFIG = WireConfig(known_opcodes=frozenset(KNOWN_OPCODES))
LOCAL_IP6 = 0xFD00_0000_0000_0000_0000_0000_0000_0110
LOCAL_IP4 = 0x0A00_0110
LOCAL_MAC = 0x0200_0000_0110
PEER_IP6 = 0xFD00_0000_0000_0000_0000_0000_0000_0220
PEER_IP4 = 0x0A00_0220
PEER_MAC = 0x0200_0000_0220


def global_config(config: WireConfig = CONFIG, **changes: int) -> dict[str, int]:
    """Values of GLOBAL_CONFIG for the settings ``config`` of the model."""
    values = dict.fromkeys(GLOBAL_CONFIG.members, 0)
    values |= {f"dscp_{cls.name.lower()}": config.dscp[cls] for cls in Dscp}
    values |= {
        "udp_port": config.udp_port, "ev_swap": int(config.ev_swap), "hop_limit": config.hop_limit,
        "local_ip6": LOCAL_IP6, "local_ip4": LOCAL_IP4, "local_mac": LOCAL_MAC,
    }  # fmt: skip
    return values | changes


def qp_config(ipv4: bool = False, **changes: int) -> dict[str, int]:
    """Values of QP_CONFIG for a QP whose peer has the PEER addresses."""
    values = dict.fromkeys(QP_CONFIG.members, 0)
    values |= {"dest_qpn": 0x5A0312, "pkey": 0x8765, "ipv4": int(ipv4), "peer_ip": PEER_IP4 if ipv4 else PEER_IP6, "peer_mac": PEER_MAC}
    return values | changes


def plain(value: Any) -> Any:
    """A sampled struct as a dict of numbers; unions and numbers stay as they are (unions as a number)."""
    if not isinstance(value, data.Const):
        return value
    layout = value.shape()
    if isinstance(layout, data.StructLayout):
        return {name: plain(value[name]) for name in layout.members}
    return value.as_bits()


def beats(frame: bytes, width: int, bad: bool = False) -> list[dict[str, int]]:
    """The beats of a frame on a stream of ``width`` bits."""
    size = width // 8
    parts = [frame[i : i + size] for i in range(0, len(frame), size)] or [b""]
    return [
        {"data": int.from_bytes(p, "little"), "keep": (1 << len(p)) - 1, "last": int(i == len(parts) - 1), "bad": int(bad and i == len(parts) - 1)}
        for i, p in enumerate(parts)
    ]  # fmt: skip


async def send(ctx: Any, stream: Any, items: Iterable[Any], go: Callable[[], bool] = lambda: True) -> None:
    """Offers ``items`` on ``stream`` in order; before each, waits while ``go`` says no. Valid never depends on ready."""
    for item in items:
        while not go():
            await ctx.tick()
        ctx.set(stream.payload, item)
        ctx.set(stream.valid, 1)
        await ctx.tick().until(stream.ready)
        ctx.set(stream.valid, 0)


async def collect(ctx: Any, stream: Any, out: list[Any], go: Callable[[], bool] = lambda: True, log: list[str] | None = None) -> None:
    """Takes whatever ``stream`` offers into ``out``; a clock in which ``go`` says no stalls it. Notes a payload that changes unaccepted in ``log``."""
    waiting: Any = None
    while True:
        ready = go()
        ctx.set(stream.ready, ready)
        _, _, valid, payload = await ctx.tick().sample(stream.valid, stream.payload)
        value = plain(payload) if valid else None
        if waiting is not None and value != waiting and log is not None:
            log.append(f"stream changed while not ready: {waiting} -> {value}")
        waiting = None if ready else value
        if valid and ready:
            out.append(value)


async def pulses(ctx: Any, port: Any, out: list[Any]) -> None:
    """Every clock in which ``port.valid`` is set adds the cause to ``out``."""
    while True:
        _, _, valid, cause = await ctx.tick().sample(port.valid, port.cause)
        if valid:
            out.append(spec.Drop(cause))


def kind_of(opcode: int) -> str:
    """The member of layouts.ext that holds this opcode's extension headers."""
    return {Opcode.ACK: "ack", Opcode.SACK: "sack", Opcode.NACK: "nack", Opcode.PROBE: "probe"}.get(opcode, "data")


def packet_ext(packet: Packet) -> dict[str, int]:
    """Values of the extension fields of ``packet`` by name, as descriptors carry them: fixed ones and absent ones 0, the probe id of a SACK in place."""
    kind = kind_of(packet.opcode)
    names = ("METH", "TSETH", "RETH", "IMMDT") if kind == "data" else spec.extensions(packet.opcode, 0)
    values = {f.name: 0 if f.fixed else getattr(packet, f.name) for name in names for f in spec.HEADERS[name] if f.name}
    if packet.opcode == Opcode.SACK and packet.pr:
        values["ack_psn_offset"] = (packet.probe_id ^ 0x8000) - 0x8000
    return values


def union_bits(layout: data.UnionLayout, kind: str, values: dict[str, int]) -> int:
    """The number that the union ``layout`` holds when its member ``kind`` has ``values``; fields not named are 0."""
    struct = layout[kind].shape
    bits = 0
    for name, field in struct:
        bits |= (values.get(name, 0) & (1 << field.width) - 1) << field.offset
    return bits


def coin(rng: random.Random, probability: float) -> Callable[[], bool]:
    """A decision per clock that is true with ``probability``."""
    return lambda: rng.random() < probability


def golden(frame: bytes, config: WireConfig = CONFIG, bad: bool = False) -> Packet | spec.Drop:
    """The model's verdict on a frame, the MAC's error flag included."""
    return spec.Drop.BAD_FRAME if bad else wire.parse(frame, config)
