"""The interface of :class:`verif.harness.native.Native` over two golden endpoints: scenarios and environment run without RTL, in seconds.

Of the fabric's faults only ``drop`` exists here; other settings are taken and have no effect. Buses do not exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from hdl.host import regmap
from hdl.host.regmap import BY_NAME
from hdl.params import Params
from model.config import EvConfig, GlobalConfig, QpConfig, Region, WorkRequest
from model.spec import Command, Drop
from verif.harness.native import FOREVER
from verif.harness.stream import EventType
from verif.recorded import RecordedPair

_CONFIG: dict[int, Any] = {
    Command.SET_GLOBAL: GlobalConfig, Command.SET_QP: QpConfig, Command.SET_EV: EvConfig, Command.SET_REGION: Region, Command.POST: WorkRequest,
}  # fmt: skip
_DATA0 = BY_NAME["DATA0"].address


class GoldenNative:
    """Two golden endpoints as "hardware". One tick passes per turn of the loop; an operation of the host takes one turn."""

    def __init__(self, params: Params, seed: int, memory_bytes: int) -> None:
        self.p = params
        self.pair = RecordedPair(params, seed, memory_bytes=memory_bytes)
        self.operations: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.words = [[0] * 16, [0] * 16]
        self.arg, self.status = [0, 0], [0, 0]
        self.stop: dict[str, int] = {}
        self._moved_at = 0
        self.lib = None

    # --- what System calls ------------------------------------------------------------------------------------------------------------
    def completion_registers(self, registers: list[int], pop: int) -> None:
        """Completions are polled by the pair itself."""

    def capture(self, prefix: str) -> None:
        """No captures."""

    def set(self, name: str, value: int, nic: int | None = None, plane: int | None = None) -> None:
        if name == "drop":
            self.pair.loss = value / 1e6

    @property
    def clock(self) -> int:
        return self.pair.clock

    @property
    def still(self) -> int:
        return self.clock - self._moved_at

    def arm(self, clock: int = FOREVER, quiet: int = FOREVER, **other: int) -> None:
        self.stop = {"clock": clock, "quiet": quiet, "from": self.clock}

    async def wake(self) -> None:
        """Runs until the armed condition."""
        while self.clock < self.stop["clock"] and self.clock - max(self._moved_at, self.stop["from"]) < self.stop["quiet"]:
            events, busy = len(self.pair.chunks), bool(self.pair.flight)
            for nic in (0, 1):
                for _ in range(min(20, len(self.operations[nic]))):
                    self._operate(nic, *self.operations[nic].popleft())
            self.pair.run(1)
            if len(self.pair.chunks) != events or busy:
                self._moved_at = self.clock

    def drain(self) -> bytes:
        chunk = self.pair.stream
        self.pair.chunks.clear()
        return chunk

    def write(self, nic: int, address: int, data: bytes) -> None:
        self.pair.write(nic, address, data)

    def read(self, nic: int, address: int, length: int) -> bytes:
        return self.pair.ends[nic].read_memory(address, length)

    def queue(self, nic: int, operations: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        self.operations[nic].extend(operations)

    def counter(self, name: str, nic: int, plane: int = 0) -> int:
        pair = self.pair
        known = {"sent": pair.sent[nic][plane], "delivered": pair.delivered[nic][plane], "dropped": pair.lost[nic][plane],
                 "host_waiting": len(self.operations[nic]), "idle": int(not pair.flight and not self.operations[nic]),
                 "write_errors": 1}  # fmt: skip
        return known.get(name, 0)

    # --- registers ----------------------------------------------------------------------------------------------------------------------
    def _operate(self, nic: int, op: int, address: int, value: int, mask: int, tag: int, limit: int) -> None:
        if op == 0:
            if _DATA0 <= address < _DATA0 + 64:
                self.words[nic][(address - _DATA0) // 4] = value
            elif address == BY_NAME["CMD_ARG"].address:
                self.arg[nic] = value
            elif address == BY_NAME["CMD"].address:
                self.status[nic] = self._command(nic, value)
            return
        result = self.status[nic] if address == BY_NAME["CMD_STATUS"].address else self._register(nic, address)
        self.pair.event(EventType.ANSWER, nic, 0, number=tag, aux=result)

    def _command(self, nic: int, op: int) -> int:
        data = sum(word << 32 * i for i, word in enumerate(self.words[nic]))
        config: Any = _CONFIG[op].unpack(data) if op in _CONFIG else data & (2**64 - 1 if op == Command.POST_RECV else 7)
        return int(self.pair.ends[nic].command(op, self.arg[nic] & 0xFFFF, self.arg[nic] >> 16, config, self.pair.now))

    def _register(self, nic: int, address: int) -> int:
        if regmap.COUNTER_BASE <= address < regmap.COUNTER_BASE + 4 * len(Drop):
            return self.pair.ends[nic].drops.get(Drop((address - regmap.COUNTER_BASE) // 4), 0)
        for plane in range(self.p.planes):
            if address == regmap.plane_counter(plane, "tx_frames"):
                return self.pair.sent[nic][plane]
            if address == regmap.plane_counter(plane, "rx_frames"):
                return self.pair.delivered[1 - nic][plane]
        return 0
