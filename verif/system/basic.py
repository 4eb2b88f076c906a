"""First scenarios: one write, both directions, faults on."""

from __future__ import annotations

from verif.system.env import A, B, System
from verif.system.scenarios import scenario


@scenario()
async def one_write(s: System) -> None:
    """A writes 5000 bytes to B."""
    await s.connect()
    s.write(A, 5000)
    await s.done()


@scenario()
async def both_directions(s: System) -> None:
    """Writes and WriteIMMs over two QPs in both directions, slow and random buses."""
    for name in ("aw_gap", "w_gap", "b_gap", "ar_gap", "r_gap", "tx_stall", "rx_gap", "axil_gap"):
        s.native.set(name, 100_000)
    s.native.set("latency_max", 40)
    for qp in (0, 1):
        await s.connect(qp)
    for n in range(8):
        for nic in (A, B):
            for qp in (0, 1):
                s.write(nic, s.rng.randrange(1, 4000), qp, imm=0x100 + n if n % 3 == 0 else None)
    await s.done()


@scenario(seeds=2)
async def lossy(s: System) -> None:
    """As above over a fabric that does everything wrong now and then."""
    for name, ppm in (("drop", 10_000), ("corrupt", 5_000), ("duplicate", 10_000), ("reorder", 50_000), ("mark", 20_000), ("trim", 10_000)):
        s.native.set(name, ppm)
    s.native.set("jitter", 200)
    for qp in (0, 1):
        await s.connect(qp, timer_exp=4)
    for n in range(12):
        for nic in (A, B):
            for qp in (0, 1):
                s.write(nic, s.rng.randrange(1, 6000), qp, imm=0x200 + n if n % 4 == 0 else None)
        await s.step(500)
    await s.done()
