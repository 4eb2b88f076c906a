"""The interface of :class:`verif.harness.native.Native` over two golden endpoints: scenarios and environment run without RTL, in seconds.

The faults are those of :mod:`verif.system.golden_fabric`; settings of buses and streams are taken and have no effect, for there are none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from struct import unpack
from typing import Any

from hdl.host import regmap
from hdl.host.regmap import BY_NAME
from hdl.params import Params
from model.config import EvConfig, GlobalConfig, QpConfig, Region, WorkRequest
from model.spec import EXP_FOREVER, MAX_TIMER_EXP, MPR_UNIT, MTUS, Command, Drop, PostStatus
from verif.harness.native import ACTIONS, FOREVER, LINK_COUNTERS
from verif.harness.stream import EventType
from verif.system.golden_fabric import SETTINGS, FabricPair, Rule

_CONFIG: dict[int, Any] = {
    Command.SET_GLOBAL: GlobalConfig, Command.SET_QP: QpConfig, Command.SET_EV: EvConfig, Command.SET_REGION: Region, Command.POST: WorkRequest,
}  # fmt: skip
_AT = {name: register.address for name, register in BY_NAME.items()}
_ACCESS = {register.address: register.access for register in regmap.REGISTERS}
_DATA0, _CQ = _AT["DATA0"], ("CQ_INFO", "CQ_WR_ID_LO", "CQ_WR_ID_HI", "CQ_LENGTH", "CQ_IMM")
_SLVERR = 2 << 32
_BUSES = ("aw_gap", "w_gap", "b_gap", "ar_gap", "r_gap", "latency_min", "latency_max", "out_of_order", "outstanding", "axil_gap", "cq_period",
          "tx_stall", "tx_lazy", "tx_period", "rx_gap")  # fmt: skip


def bad_value(config: QpConfig, params: Params) -> bool:
    """A SET_QP that the dispatcher refuses (architecture.md, "QPs and commands"): the endpoints have no dispatcher."""
    return (config.mtu > MTUS.index(params.mtu) or not 0 < config.rsp_mpr <= params.window or config.rsp_mpr % MPR_UNIT != 0
            or config.timer_exp > MAX_TIMER_EXP or config.exp_cnt > EXP_FOREVER or config.lfsr_seed == 0)  # fmt: skip


class GoldenNative:
    """Two golden endpoints as "hardware". One tick passes per turn of the loop, in which a host does up to 20 operations.

    A command ends with the operation after it, so a second write to CMD right behind a first finds it busy.
    """

    def __init__(self, params: Params, seed: int, memory_bytes: int) -> None:
        self.p = params
        self.pair = FabricPair(params, seed, memory_bytes)
        self.operations: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.words = [[0] * 16, [0] * 16]
        self.arg, self.status, self.busy, self.mailbox_errors = [0, 0], [0, 0], [False, False], [0, 0]
        self.irq_enable = [0, 0]
        self.stop: dict[str, int] = {}
        self._moved_at = 0
        self.lib = None

    # --- what System calls ------------------------------------------------------------------------------------------------------------
    def completion_registers(self, registers: list[int], pop: int) -> None:
        """Completions are polled by the pair itself."""

    def capture(self, prefix: str) -> None:
        """As Native.capture, sent frames only."""
        self.pair.capture(prefix)

    def set(self, name: str, value: int, nic: int | None = None, plane: int | None = None) -> None:
        for n in (0, 1) if nic is None else (nic,):
            for p in range(self.p.planes) if plane is None else (plane,):
                if name == "up":
                    self.pair.link(n, p, bool(value))
                elif name == "cq_poll":
                    self.pair.cq_poll[n] = bool(value)
                elif name in SETTINGS:
                    self.pair.settings[n][p][name] = int(value)
                elif name not in _BUSES:
                    raise ValueError(f"there is nothing called {name!r} to set")

    def rule(self, action: str, *, nic: int | None = None, plane: int | None = None, opcode: int | tuple[int, int] | None = None,
             rtx: int | None = None, qp: int | None = None, psn: int | None = None, ev: int | None = None, skip: int = 0,
             count: int | None = 1, argument: int = -1) -> int:  # fmt: skip
        if action not in ACTIONS:
            raise ValueError(f"there is no action {action!r}: choose one of {', '.join(ACTIONS)}")
        if argument < 0 and action in ("delay", "duplicate"):
            argument = 0 if action == "duplicate" else 1000
        low, high = (0, 255) if opcode is None else (opcode, opcode) if isinstance(opcode, int) else opcode
        self.pair.rules.append(Rule(action, nic, plane, low, high, rtx, qp, psn, ev, skip, count, argument))
        return len(self.pair.rules) - 1

    def rule_hits(self, rule: int) -> int:
        return self.pair.rules[rule].hits

    def rule_clear(self, rule: int) -> None:
        self.pair.rules[rule].active = False

    def inject(self, nic: int, plane: int, frame: bytes, delay: int = 0, bad: bool = False) -> None:
        if not 0 < len(frame) <= 65535:
            raise ValueError(f"a frame of {len(frame)} bytes cannot be injected: 1 to 65535 bytes")
        self.pair.inject(nic, plane, bytes(frame), delay, bad)

    def error_range(self, nic: int, low: int, high: int, read: bool = True, write: bool = True) -> None:
        self.pair.errors[nic].append((low, high, read, write))

    def clear_error_ranges(self, nic: int) -> None:
        self.pair.errors[nic].clear()

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
            events = len(self.pair.chunks)
            for nic in (0, 1):
                for _ in range(min(20, len(self.operations[nic]))):
                    self._operate(nic, *self.operations[nic].popleft())
            self.pair.run(1)
            if len(self.pair.chunks) != events or self.pair.active:
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
        if name in LINK_COUNTERS:
            return pair.counts[nic][plane][name]
        known = {"host_waiting": len(self.operations[nic]), "idle": int(not pair.queue and not self.operations[nic]),
                 "write_errors": pair.write_errors[nic], "read_errors": pair.read_errors[nic], "write_bytes": pair.write_bytes[nic]}  # fmt: skip
        return known[name]

    # --- registers ----------------------------------------------------------------------------------------------------------------------
    def _operate(self, nic: int, op: int, address: int, value: int, mask: int, tag: int, limit: int) -> None:
        if op == 3:
            return
        if op == 0:
            result = value | (0 if self._write(nic, address, value) else _SLVERR)
            if not tag and result == value:
                return
        else:
            self.busy[nic] = False
            result = self._register(nic, address)
        self.pair.event(EventType.ANSWER, nic, 0, number=tag, aux=result)

    def _write(self, nic: int, address: int, value: int) -> bool:
        """A write to a register; False: SLVERR."""
        if address != _AT["CMD"]:
            self.busy[nic] = False
        if _DATA0 <= address < _DATA0 + 4 * regmap.DATA_WORDS:
            self.words[nic][(address - _DATA0) // 4] = value
        elif address == _AT["CMD_ARG"]:
            self.arg[nic] = value
        elif address == _AT["IRQ_ENABLE"]:
            self.irq_enable[nic] = value & 1
        elif address == _AT["CQ_POP"]:
            self.pair.ends[nic].poll(1)
        elif address == _AT["CMD"] and self.busy[nic]:
            self.mailbox_errors[nic] += 1
        elif address == _AT["CMD"]:
            self.busy[nic] = True
            self.status[nic] = self._command(nic, value & 0xFF)
        return _ACCESS.get(address, "ro") != "ro"

    def _command(self, nic: int, op: int) -> int:
        data = sum(word << 32 * i for i, word in enumerate(self.words[nic]))
        qp, index = self.arg[nic] & 0xFFFF, self.arg[nic] >> 16
        if op == Command.PORT and index < self.p.planes:
            self.pair.port(nic, index, bool(data & 1))
            return int(PostStatus.OK)
        config: Any = _CONFIG[op].unpack(data) if op in _CONFIG else data & (2**64 - 1 if op == Command.POST_RECV else 7)
        if op == Command.SET_QP and qp < self.p.qps and bad_value(config, self.p):
            return PostStatus.BAD_VALUE
        return int(self.pair.ends[nic].command(op, qp, index, config, self.pair.now))

    def _register(self, nic: int, address: int) -> int:
        """Value of a register, with the bus response in bits 33:32."""
        end, pair, p = self.pair.ends[nic], self.pair, self.p
        if regmap.COUNTER_BASE <= address < regmap.COUNTER_BASE + 4 * len(Drop):
            return end.drops.get(Drop((address - regmap.COUNTER_BASE) // 4), 0)
        for plane in range(p.planes):
            if address == regmap.plane_counter(plane, "tx_frames"):
                return pair.counts[nic][plane]["sent"]
            if address == regmap.plane_counter(plane, "rx_frames"):
                return pair.counts[1 - nic][plane]["delivered"]
            if address in [regmap.plane_counter(plane, name) for name in regmap.PLANE_COUNTERS]:
                return 0
        values = {
            "ID": regmap.ID_VALUE, "VERSION": regmap.VERSION_VALUE, "PARAMS0": p.qps | p.planes << 16 | (p.window.bit_length() - 1) << 24,
            "PARAMS1": p.evs | p.msg_slots << 16, "PORT_STATUS": end.up, "TICK": pair.now & 0xFFFF_FFFF, "IRQ_ENABLE": self.irq_enable[nic],
            "MAILBOX_ERRORS": self.mailbox_errors[nic], "CMD_ARG": self.arg[nic], "CMD_STATUS": self.status[nic], "CQ_COUNT": len(end._cq),
            **{f"DATA{i}": word for i, word in enumerate(self.words[nic])},
        }  # fmt: skip
        waiting = unpack("<5I", pair._completion(end._cq[0])) if end._cq else (0,) * 5
        values |= dict(zip(_CQ, waiting, strict=True))
        found = {_AT[name]: value for name, value in values.items()}.get(address)
        if found is None:
            return 0 if address in _ACCESS else _SLVERR
        return found
