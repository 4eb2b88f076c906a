"""How fast hardware and bench are: the cases of `make bench`. Figures are clocks and packets, the same on every machine; wall time is only printed."""

from __future__ import annotations

from verif.system.env import A, B, System
from verif.system.frames import restart
from verif.system.scenarios import scenario

MESSAGE = 32 << 10  # bytes
TARGET = 0x300_0000  # one buffer for each QP, used again: only the last bytes written to it are compared


async def _burst(s: System, nics: tuple[int, ...], qps: int, messages: int) -> int:
    """Clocks from the first post to the last completion of ``messages`` writes of each QP."""
    start = s.clock
    for n in range(messages):
        for qp in range(qps):
            for nic in nics:
                s.write(nic, MESSAGE, qp, source=0x20_0000 + (qp << 16), data=bytes(MESSAGE), target=TARGET + (qp << 16) + 8 * (n % 4))
    await s.done(5_000_000)
    return s.clock - start


@scenario(presets=("board",), group="bench", timeout=600.0)
async def rates(s: System) -> None:
    """Data packets per clock over all planes: one QP and four, one direction and both, by MTU. Window and cwnd are wide open."""
    s.check_memory = False
    figures = {}
    for mtu in (0, 2, 4):
        for qps in (1, 4):
            for nics in ((A,), (A, B)):
                for qp in range(qps):
                    if (A, qp) in s.peer:
                        await restart(s, qp, mtu=mtu, receives=0)
                    else:
                        await s.connect(qp, mtu=mtu, receives=0)
                clocks = await _burst(s, nics, qps, 6)
                packets = 6 * qps * len(nics) * (MESSAGE >> 8 + mtu)
                figures[f"mtu{256 << mtu}_qps{qps}_{'both' if len(nics) == 2 else 'one'}"] = round(packets / clocks, 5)
    s.run.report(figures={f"packets_per_clock_{name}": {"value": value, "unit": "packets/clock",
                                                        "how": "data packets of both NICs on all planes, posts to last completion; window and cwnd open"}
                          for name, value in figures.items()})  # fmt: skip


@scenario(presets=("board",), group="bench", timeout=600.0)
async def speed(s: System) -> None:
    """1 KiB frames in both directions over four QPs, lockstep on: how fast the bench is."""
    for qp in range(4):
        await s.connect(qp)
    for round_ in range(10):
        for _ in range(8):
            for nic in (A, B):
                for qp in range(4):
                    s.write(nic, 8192, qp, target=TARGET + (qp << 16) if round_ else None)
        await s.done()
    s.check_memory = False
