"""The command dispatcher between two owners that the test plays."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from hdl.dispatch import Dispatcher
from hdl.layouts import GLOBAL_CONFIG, QP_CONFIG
from hdl.params import preset
from model.spec import Command, PostStatus
from verif.responder.codec import encoder

SOUND = {"mtu": 4, "rsp_mpr": 128, "timer_exp": 24, "exp_cnt": 25, "lfsr_seed": 1, "dest_qpn": 0xABCDEF, "peer_ip": 1 << 127}
OK, BAD_QP, BAD_VALUE, BAD_OPCODE, BAD_STATE = PostStatus.OK, PostStatus.BAD_QP, PostStatus.BAD_VALUE, PostStatus.BAD_OPCODE, PostStatus.BAD_STATE


def run(commands: list[tuple[int, int, int, int]], answers: dict[str, PostStatus], seed: int = 0) -> dict[str, Any]:
    """Sends ``commands`` (op, qp, index, data); each owner answers ``answers[owner]``. What everybody saw, and the configuration at each status."""
    d = Dispatcher(preset("tiny"))
    rng = random.Random(seed)
    seen: dict[str, Any] = {"req": [], "rsp": [], "status": [], "cfg": [], "config_at_status": []}
    cmd = encoder(d.cmd.payload.shape())

    async def process(ctx: Any) -> None:
        waiting = {"req": 0, "rsp": 0}
        left = list(commands)
        for _ in range(4000):
            ctx.set(d.cmd.valid, bool(left))
            if left:
                ctx.set(Value.cast(d.cmd.payload), cmd(dict(zip(("op", "qp", "index", "data"), left[0], strict=True))))
            ctx.set(d.cmd_status.ready, rng.random() < 0.5)
            for name in ("req", "rsp"):
                ctx.set(getattr(d, name + "_cmd").ready, rng.random() < 0.3 and not waiting[name])
                ctx.set(getattr(d, name + "_status").valid, waiting[name] > 0)
                ctx.set(getattr(d, name + "_status").payload.status, answers[name])
            for name in ("req", "rsp"):
                port, status = getattr(d, name + "_cmd"), getattr(d, name + "_status")
                if ctx.get(status.valid & status.ready):
                    waiting[name] -= 1
                if ctx.get(port.valid & port.ready):
                    seen[name].append(ctx.get(port.payload.op))
                    waiting[name] += 1
                    assert ctx.get(Value.cast(port.payload)) == ctx.get(Value.cast(d.cmd.payload))
            if ctx.get(d.cfg_wr.valid):
                seen["cfg"].append((ctx.get(d.cfg_wr.qp), ctx.get(Value.cast(d.cfg_wr.data))))
            if ctx.get(d.cmd_status.valid & d.cmd_status.ready):
                seen["status"].append(PostStatus(ctx.get(d.cmd_status.payload.status)))
                seen["config_at_status"].append((len(seen["cfg"]), ctx.get(Value.cast(d.global_config))))
            if left and ctx.get(d.cmd.ready):
                left.pop(0)
            if not left and len(seen["status"]) == len(commands):
                return
            await ctx.tick()
        raise AssertionError(f"hangs: {seen}")

    sim = Simulator(d)
    sim.add_clock(1e-8)
    sim.add_testbench(process)
    sim.run()
    return seen


def test_who_gets_what() -> None:
    """Requestor first, then responder; the first one's status counts; NOP and unknown ops go to nobody."""
    ops = list(range(12))
    seen = run([(op, 1, 0, encoder(QP_CONFIG)(SOUND) if op == Command.SET_QP else 0) for op in ops], {"req": BAD_STATE, "rsp": PostStatus.FULL})
    assert seen["req"] == [1, 2, 3, 4, 6, 7, 9] and seen["rsp"] == [1, 2, 5, 6, 8, 9]
    expected = {0: OK, 5: PostStatus.FULL, 8: PostStatus.FULL, 10: BAD_OPCODE, 11: BAD_OPCODE}
    assert seen["status"] == [expected.get(op, BAD_STATE) for op in ops]
    assert seen["cfg"] == [] and seen["config_at_status"][-1] == (0, 0)  # refused: nobody is told


def test_indexes() -> None:
    """A QP, EV, region or port that does not exist is refused here, for the commands that name one."""
    cases = [(Command.SET_EV, 2, 0, BAD_QP), (Command.POST, 0x102, 0, BAD_QP), (Command.MODIFY, 0xFFFF, 0, BAD_QP), (Command.SET_EV, 1, 3, OK),
             (Command.SET_EV, 1, 4, BAD_QP), (Command.EV_STATE, 0, 0x100, BAD_QP), (Command.SET_REGION, 9, 7, OK), (Command.SET_REGION, 0, 8, BAD_QP),
             (Command.PORT, 9, 1, OK), (Command.PORT, 0, 2, BAD_QP), (Command.MODIFY, 1, 99, OK)]  # fmt: skip
    seen = run([(op, qp, index, 0) for op, qp, index, _ in cases], {"req": OK, "rsp": OK})
    assert seen["status"] == [status for *_, status in cases]
    assert seen["req"] == [Command.SET_EV, Command.PORT, Command.MODIFY]


@pytest.mark.parametrize("seed", (1, 2))
def test_configuration_comes_before_the_status(seed: int) -> None:
    """SET_QP and SET_GLOBAL reach ingress and egress before the host hears that they succeeded; a bad QP parameter reaches nobody."""
    qp, glob = encoder(QP_CONFIG), encoder(GLOBAL_CONFIG)
    wrong = [{"mtu": 5}, {"rsp_mpr": 0}, {"rsp_mpr": 64}, {"rsp_mpr": 256}, {"timer_exp": 25}, {"exp_cnt": 26}, {"lfsr_seed": 0}]
    new = glob({"udp_port": 4791, "local_mac": 0x0200_0000_0001, "base_rtt": 94})
    commands = [(Command.SET_QP, 1, 0, qp(SOUND)), *((Command.SET_QP, 0, 0, qp(SOUND | fields)) for fields in wrong), (Command.SET_GLOBAL, 0, 0, new)]
    seen = run(commands, {"req": OK, "rsp": OK}, seed)
    assert seen["status"] == [OK, *[BAD_VALUE] * len(wrong), OK] and seen["cfg"] == [(1, qp(SOUND))]
    assert seen["config_at_status"][0] == (1, 0) and seen["config_at_status"][-1] == (1, new)
