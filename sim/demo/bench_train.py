"""The training inside the simulation: each gradient is an RDMA Write and a WriteIMM between two NICs in RTL, lockstep on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cocotb

from model.spec import DATA_OPCODES, ETH_BYTES, IPV6_BYTES, UDP_BYTES
from sim.demo import plan
from sim.demo.backends import EVENTS_FILE, WEIGHTS_FILE
from sim.demo.events import Event, EventLog
from sim.demo.training import Progress, Result, Settings, rounds
from verif.cases import Run, this_run
from verif.harness import stream as events
from verif.system.env import A, B, System

STEP_CLOCKS = 3_000_000
FLOW_LABEL = ETH_BYTES + 2  # its low 16 bits
UDP = ETH_BYTES + IPV6_BYTES
BTH = UDP + UDP_BYTES


class RtlExchange:
    """Gradients between NIC A (rank 0) and NIC B (rank 1)."""

    def __init__(self, system: System, settings: Settings) -> None:
        self.s = system
        self.steps = settings.steps
        self.buffers: list[tuple[int, int]] = []
        self.holes: list[int] = []
        self.paths: Counter[str] = Counter()
        self.names = {
            system.ev_value(nic, plan.QP, evi): f"{'AB'[nic]} {evi // system.p.evs}.{evi % system.p.evs}"
            for nic in (A, B) for evi in range(system.p.total_evs)
        }  # fmt: skip

    async def start(self, length: int) -> None:
        """Connects the NICs, makes buffers, turns the faults on."""
        s = self.s
        await s.connect(plan.QP, psn_a=0xFFFF80, timer_exp=plan.TIMER_EXP, mtu=plan.MTU_CODE, cwnd=1 << 17, receives=0)
        self.buffers = [(s.source(nic, bytes(length), 3), s.target(nic, length, 5)) for nic in (A, B)]
        for name, share in (("drop", plan.WRONG.drop), ("reorder", plan.WRONG.reorder), ("mark", plan.WRONG.mark)):
            s.native.set(name, round(1_000_000 * share))
        s.native.set("jitter", 200)

    async def exchange(self, step: int, gradients: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """One step; see :class:`sim.demo.training.Exchange`."""
        s = self.s
        self._path(step)
        for nic in (A, B):
            (source, _), (_, target) = self.buffers[nic], self.buffers[1 - nic]
            s.native.write(nic, source, gradients[nic])
            s.post_recv(nic, plan.QP)
        for nic in (A, B):
            (source, _), (_, target) = self.buffers[nic], self.buffers[1 - nic]
            (a, first), (b, rest) = plan.split(len(gradients[nic]))
            s.write(nic, qp=plan.QP, data=gradients[nic][a : a + first], source=source + a, target=target + a)
            s.write(nic, qp=plan.QP, data=gradients[nic][b : b + rest], source=source + b, target=target + b, imm=step)
        await s.done(STEP_CLOCKS)
        received = [s.native.read(nic, self.buffers[nic][1], len(gradients[1 - nic])) for nic in (A, B)]
        s.messages.clear()  # the buffers are used again: their memory is compared here, by the training, and by the guards around it
        return received[0], received[1]

    def _path(self, step: int) -> None:
        now = plan.path_is_dead(step, self.steps)
        if now == (step > 0 and plan.path_is_dead(step - 1, self.steps)):
            return
        plane, ev = plan.WRONG.dead_path
        for nic in (A, B):
            if now:
                value = self.s.ev_value(nic, plan.QP, plane * self.s.p.evs + ev)
                self.holes.append(self.s.native.rule("blackhole", nic=nic, ev=value, count=None))
            else:
                self.s.native.rule_clear(self.holes.pop())

    def saw(self, event: events.Event) -> None:
        """Counts the data packets of every path as they leave."""
        if event.type == events.EventType.SENT and event.data[BTH] in DATA_OPCODES:
            entropy = int.from_bytes(event.data[UDP : UDP + 2], "big") << 16 | int.from_bytes(event.data[FLOW_LABEL : FLOW_LABEL + 2], "big")
            self.paths[self.names[entropy]] += 1

    def event(self, progress: Progress) -> Event:
        """The viewer's event after a step."""
        s = self.s
        faults = {name: count for name, count in s.faults().items() if count and name not in ("sent", "delivered")}
        us = s.clock * 0.128 / s.p.tick_div
        return Event(progress.step, progress.steps, progress.loss, progress.accuracy, us, dict(self.paths), faults,
                     plan.note(progress.step - 1, progress.steps))  # fmt: skip


async def _train(run: Run, exchange: RtlExchange, settings: Settings) -> Result:
    log = EventLog(run.out / EVENTS_FILE)
    steps = rounds(settings, lambda progress: log.write(exchange.event(progress)))
    step, gradients = next(steps)
    await exchange.start(len(gradients[0]))
    while True:
        received = await exchange.exchange(step, gradients)
        try:
            step, gradients = steps.send(received)
        except StopIteration as end:
            result: Result = end.value
            return result


@cocotb.test()
async def train_over_rtl(dut: Any) -> None:
    """The whole training, then the checks of every system test."""
    run = this_run()
    settings = Settings(steps=run.parameters["steps"], seed=run.parameters["seed"])
    system = System(dut, run)
    exchange = RtlExchange(system, settings)
    system.watchers.append(exchange.saw)
    try:
        result = await _train(run, exchange, settings)
        await system.finish()
        (run.out / WEIGHTS_FILE).write_bytes(result.weights)
    finally:
        system.close()
