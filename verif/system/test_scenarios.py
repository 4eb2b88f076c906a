"""The environment and its scenarios, without RTL: golden endpoints take the place of the hardware. And the environment's own checks can fail."""

from __future__ import annotations

import asyncio

import pytest

import verif.system.basic
from hdl.params import preset
from model.spec import PostStatus
from verif.cases import Run
from verif.lockstep import LockstepError
from verif.system.env import MEMORY_BYTES, A, B, CheckError, System
from verif.system.golden_native import GoldenNative
from verif.system.scenarios import SCENARIOS

assert verif.system.basic


def system(tmp_path, seed=1, **parameters) -> System:
    params = preset("tiny", trace=True)
    run = Run("scenario", "tiny", seed, {"remote": False, **parameters}, tmp_path)
    return System(None, run, GoldenNative(params, seed, MEMORY_BYTES))


def go(s: System, scenario) -> None:
    async def whole() -> None:
        await scenario(s)
        await s.finish()

    asyncio.run(whole())


@pytest.mark.parametrize("name", ["one_write", "both_directions", "lossy"])
def test_scenario(tmp_path, name):
    s = system(tmp_path)
    go(s, SCENARIOS[name])
    assert s.lockstep.records > 20 and (tmp_path / "result.json").exists()
    if name == "lossy":
        assert s.faults()["dropped"] > 0
    if name == "one_write":
        assert [(c.nic, c.length) for c in s.completions] == [(A, 5000)]


def test_without_lockstep(tmp_path):
    go(system(tmp_path, lockstep=False), SCENARIOS["one_write"])


def failing(tmp_path, scenario, text, error=CheckError, **parameters):
    with pytest.raises(error, match=text):
        go(system(tmp_path, **parameters), scenario)


async def _two(s: System) -> None:
    await s.connect()
    s.write(A, 300, imm=5)
    s.write(B, 300)
    await s.done()


def test_checks_memory(tmp_path):
    async def broken_byte(s: System) -> None:
        await _two(s)
        s.native.pair.ends[B].memory[s.messages[0].target + 299] ^= 1

    async def broken_guard(s: System) -> None:
        await _two(s)
        s.native.pair.ends[A].memory[s.messages[1].target + 300] ^= 1

    failing(tmp_path, broken_byte, "byte 299 of the 300")
    failing(tmp_path, broken_guard, "byte 300 of the 300")


def test_checks_completions(tmp_path):
    async def wrong_imm(s: System) -> None:
        await s.connect()
        s.write(A, 300, imm=5).imm = 6
        await s.done()

    async def wrong_order(s: System) -> None:
        await s.connect()
        s.write(A, 300)
        s.write(A, 301)
        s.sends[A, 0].reverse()
        await s.done()

    failing(tmp_path, wrong_imm, "immediate should be 0x6")
    failing(tmp_path, wrong_order, "next completion should have wr_id")


def test_checks_counters(tmp_path):
    async def lost_count(s: System) -> None:
        await _two(s)
        s.native.pair.count[A][0]["sent"] += 1

    async def lost_drop(s: System) -> None:
        await _two(s)
        s.native.pair.ends[A].nic_drops[3] += 1

    failing(tmp_path, lost_count, "frames entered")
    failing(tmp_path, lost_drop, "drop_ip_length is 1, the golden model counts 0")


def test_checks_status_and_lockstep(tmp_path):
    async def refused(s: System) -> None:
        await s.connect()
        s.write(A, 300, expect=PostStatus.FULL)
        await s.done()

    async def tampered(s: System) -> None:
        await s.connect()
        s.native.pair.ends[A].requestor.qp[0].next_msn = 7
        s.write(A, 300)
        await s.done()

    failing(tmp_path, refused, "POST of QP 0, index 0 is answered OK, not FULL")
    failing(tmp_path, tampered, "next_msn", LockstepError)


def test_hang_is_found(tmp_path):
    async def nothing_arrives(s: System) -> None:
        await s.connect(exp_cnt=25)
        s.native.set("drop", 1_000_000)
        s.write(A, 300)
        await s.done(clocks=50_000)

    failing(tmp_path, nothing_arrives, "completion of all messages has not come.*A.0': 1")
