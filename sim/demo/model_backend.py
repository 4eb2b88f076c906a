"""Gradients between two golden endpoints over the golden model's lossy link."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from model.config import Sizes
from model.endpoint import Completion, Endpoint
from model.link import Faults, Link
from model.spec import DATA_OPCODES, PostStatus, WcStatus
from model.wire_packet import Packet
from sim import tools
from sim.demo import plan
from sim.demo.events import Event
from sim.demo.training import Progress, Settings

SIZES = Sizes(qps=1, planes=2, evs=8, active_evs=6)
MEMORY = 0x8_0000
STEP_TICKS = 4_000_000  # half a second on the wire
TICK_US = 0.128


class ModelExchange:
    """An :class:`sim.demo.training.Exchange` over two :class:`model.endpoint.Endpoint`."""

    def __init__(self, settings: Settings) -> None:
        self.steps = settings.steps
        self.ends = [Endpoint(SIZES, plan.global_config(side), MEMORY) for side in range(2)]
        for side, end in enumerate(self.ends):
            end.register(plan.REGION, plan.RKEY, plan.RECEIVE_AT, plan.REGION_BYTES, va=plan.VA)
            end.configure_qp(plan.QP, plan.qp_config(side, SIZES), plan.ev_configs(side, SIZES))
        wrong = Faults(delay=12, jitter=8, drop=plan.WRONG.drop, reorder=plan.WRONG.reorder, mark=plan.WRONG.mark)
        self.healthy = [replace(wrong) for _ in range(SIZES.planes)]
        self.paths: Counter[str] = Counter()
        self.names = {plan.ev_value(s, evi): f"{'AB'[s]} {evi // SIZES.evs}.{evi % SIZES.evs}" for s in range(2) for evi in range(SIZES.total_evs)}
        self.link = Link(self.ends[0], self.ends[1], settings.seed, self.healthy, frames=True, capture=self._captured)
        self.done: list[list[Completion]] = [[], []]

    def _captured(self, now: int, end: int, plane: int, packet: Packet) -> None:
        if packet.opcode in DATA_OPCODES:
            self.paths[self.names[packet.ev]] += 1

    def _finished(self) -> bool:
        for side, end in enumerate(self.ends):
            self.done[side] += end.poll()
        return all(len(done) == 3 for done in self.done)  # two sends, one receive

    def __call__(self, step: int, gradients: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        plane, ev = plan.WRONG.dead_path
        dead = frozenset(plan.ev_value(side, plane * SIZES.evs + ev) for side in range(2)) if plan.path_is_dead(step, self.steps) else frozenset()
        self.link.faults[plane].dead_evs = dead
        self.done = [[], []]
        for side, end in enumerate(self.ends):
            end.write_memory(plan.SEND_AT, gradients[side])
            statuses = [end.post_recv(plan.QP, step, self.link.now)]
            (a, first), (b, rest) = plan.split(len(gradients[side]))
            statuses.append(end.post_write(plan.QP, plan.SEND_AT + a, plan.VA + a, first, plan.RKEY, 2 * step, self.link.now))
            statuses.append(end.post_write_imm(plan.QP, plan.SEND_AT + b, plan.VA + b, rest, plan.RKEY, step, 2 * step + 1, self.link.now))
            if any(status != PostStatus.OK for status in statuses):
                raise tools.ToolError(f"step {step}: a request was refused: {statuses}")
        if not self.link.run(STEP_TICKS, self._finished):
            raise tools.ToolError(f"step {step}: no completion within {STEP_TICKS} ticks")
        for done in self.done:
            bad = [c for c in done if c.status != WcStatus.SUCCESS or (c.recv and c.imm != step)]
            if bad:
                raise tools.ToolError(f"step {step}: completion {bad[0]}")
        first_end, second_end = (end.read_memory(plan.RECEIVE_AT, len(gradients[1 - side])) for side, end in enumerate(self.ends))
        return first_end, second_end

    def event(self, progress: Progress) -> Event:
        """The viewer's event after a step."""
        faults: Counter[str] = Counter()
        for side in self.link.counts:
            for counts in side:
                faults.update(dropped=counts.dropped, reordered=counts.reordered, marked=counts.marked)
        return Event(progress.step, progress.steps, progress.loss, progress.accuracy, self.link.now * TICK_US, dict(self.paths), dict(faults),
                     plan.note(progress.step - 1, progress.steps))  # fmt: skip
