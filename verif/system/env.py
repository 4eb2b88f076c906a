"""What a system scenario holds in its hands: two NICs, their hosts, the fabric, and all the checks that need no attention.

A scenario is a coroutine that takes a :class:`System`:

    async def one_write(s: System) -> None:
        await s.connect()
        await s.write(A, length=5000)
        await s.done()

At its end :meth:`System.finish` waits until everything rests and checks memory with guards around every destination, completions exactly once and
in order, counters of NICs and fabric against each other and the model, and the lockstep's last word. The first error ends the test.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import unpack
from typing import Any

from cocotb.triggers import RisingEdge

from hdl.host import regmap
from hdl.host.regmap import BY_NAME
from hdl.params import Params, preset
from hdl.trace import TraceLayouts
from model.config import Config, EvConfig, GlobalConfig, QpConfig, Region, WorkRequest, default_path_credit
from model.end_packets import wire_config
from model.spec import Command, Health, PostStatus, QpState, WcStatus
from verif.cases import Run
from verif.harness.bench import clock_ns
from verif.harness.native import LINK_COUNTERS, Native
from verif.harness.stream import Event, EventType, events
from verif.lockstep import Lockstep, LockstepError
from verif.lockstep_process import RemoteLockstep
from verif.system import verdict
from verif.system.verdict import A, B, CheckError

MEMORY_BYTES = 1 << 26
SOURCE_BASE, TARGET_BASE = 0x10_0000, 0x200_0000  # host addresses of send and receive buffers
RKEY = 0x5EED_0000  # plus 256 x NIC; the low bits are the index of the region (0), as the hardware looks it up
GUARD = 64  # bytes around every destination that nobody may touch
GUARD_BYTE = 0xA5
_CMD_ARG, _CMD, _CMD_STATUS, _DATA0 = (BY_NAME[name].address for name in ("CMD_ARG", "CMD", "CMD_STATUS", "DATA0"))
_BUSY = 1 << 31
_BITS: dict[int, int] = {
    Command.SET_GLOBAL: sum(bits for _, bits in GlobalConfig.FIELDS), Command.SET_QP: sum(bits for _, bits in QpConfig.FIELDS),
    Command.SET_EV: sum(bits for _, bits in EvConfig.FIELDS), Command.SET_REGION: sum(bits for _, bits in Region.FIELDS),
    Command.POST: sum(bits for _, bits in WorkRequest.FIELDS), Command.POST_RECV: 64, Command.NOP: 0,
}  # fmt: skip


@dataclass(frozen=True)
class Completion:
    """A work completion as the host read it. ``unanswered``: payload writes on the bus without response at that moment."""

    nic: int
    qp: int
    recv: int
    status: int
    wr_id: int
    length: int
    imm: int
    clock: int
    unanswered: int


@dataclass
class Message:
    """A posted write and where its bytes must be found. ``status``: how it must complete."""

    nic: int
    qp: int
    wr_id: int
    target: int
    data: bytes
    imm: int | None
    status: WcStatus = WcStatus.SUCCESS


class System:
    """Two NICs in the simulator.

    Parameters of the case: ``build`` (changed sizes, as given to the bench), ``remote`` (lockstep in its own process, default on), ``lockstep``
    (False: none), ``bound``, ``send_bound`` (see :class:`Lockstep`). ``dut``: None when ``native`` is given.
    """

    def __init__(self, dut: Any, run: Run, native: Any = None) -> None:
        options = dict(run.parameters)
        self.dut, self.run = dut, run
        self.p: Params = preset(run.preset or "tiny", **{"trace": True, **options.get("build", {})})
        self.rng = random.Random(run.seed)
        layouts = TraceLayouts(self.p)
        # Another `native` brings other hardware than the simulator's: tests of scenarios without RTL do so.
        self.native: Any = native or Native(
            self.p.planes,
            self.p.data_width,
            self.p.port_width,
            MEMORY_BYTES,
            run.seed,
            layouts.req.size,
            layouts.rsp.size,
            clock_ns(self.p),
        )
        self.native.completion_registers(
            [BY_NAME[name].address for name in ("CQ_INFO", "CQ_WR_ID_LO", "CQ_WR_ID_HI", "CQ_LENGTH", "CQ_IMM")], BY_NAME["CQ_POP"].address
        )
        for nic in (A, B):
            self.native.queue(nic, [(0, BY_NAME["IRQ_ENABLE"].address, 1, 15, 0, 0)])
        self.lockstep: Lockstep | RemoteLockstep | None = None
        if options.get("lockstep", True) and self.p.trace:
            kind = RemoteLockstep if options.get("remote", True) else Lockstep
            self.lockstep = kind(self.p, MEMORY_BYTES, **{n: options[n] for n in ("bound", "send_bound", "cross_clocks") if n in options})
        self.native.capture(str(run.out / "plane"))
        self.completions: list[Completion] = []
        self.answers: dict[int, int] = {}
        self._tag = 0
        self._expected_status: dict[int, tuple[int, str]] = {}
        self._next = [[SOURCE_BASE, TARGET_BASE] for _ in range(2)]
        self.messages: list[Message] = []
        self.sends: dict[tuple[int, int], deque[Message]] = {}  # by NIC and QP: completions to come, in order
        self.receives: dict[tuple[int, int], deque[tuple[int, Message | None]]] = {}  # wr_id of posted entries
        self.imms: dict[tuple[int, int], deque[Message]] = {}  # WriteIMMs on their way to a NIC's QP
        self.peer: dict[tuple[int, int], tuple[int, int]] = {}
        self.check_completions = True  # False: the scenario looks at `completions` itself
        self.check_memory = True
        self.watchers: list[Callable[[Event], None]] = []  # called with every event, before the environment's own checks of it
        self.wanted_kinds: set[str] = set()  # record kinds ("requestor.send") that the lockstep must have seen by the end
        self.wanted_records = 0  # and how many records in all
        self.wire = wire_config(self.glob(A))  # codec settings of both NICs
        self.started = time.perf_counter()

    # --- time -------------------------------------------------------------------------------------------------------------------------
    @property
    def clock(self) -> int:
        """Clocks since reset."""
        return self.native.clock

    async def step(self, clocks: int = 1000, **stop: int) -> None:
        """The simulation goes on for at most ``clocks``; what it tells is checked."""
        self.native.arm(clock=self.clock + clocks, event_bytes=1 << 18, **stop)
        await (RisingEdge(self.dut.wake) if self.dut is not None else self.native.wake())
        self._drain()

    def _drain(self) -> None:
        chunk = self.native.drain()
        if not chunk:
            return
        # The model first: its report of the first difference says more than what follows from it.
        if self.lockstep is not None:
            self.lockstep.feed(chunk)
        for event in events(chunk):
            for watcher in self.watchers:
                watcher(event)
            if event.type == EventType.COMPLETION:
                self._completed(event.nic, event.clock, event.aux, event.data)
            elif event.type == EventType.ANSWER:
                self._answered(event.nic, event.id, event.aux)
            elif event.type == EventType.ERROR:
                raise CheckError(f"NIC {'AB'[event.nic]}, clock {event.clock}: {event.data.decode()}")

    async def until(self, condition: Callable[[], bool], clocks: int = 500_000, what: str = "the condition") -> None:
        """Until ``condition`` holds; CheckError when that takes more than ``clocks``."""
        limit = self.clock + clocks
        step = 64  # short waits are common, and each look costs little
        while not condition():
            if self.clock >= limit:
                raise CheckError(f"clock {self.clock}: {what} has not come within {clocks} clocks; {self._open()}")
            await self.step(min(step, limit - self.clock))
            step = min(2 * step, 1000)

    def _open(self) -> str:
        waiting = {f"{'AB'[nic]}.{qp}": len(queue) for (nic, qp), queue in self.sends.items() if queue}
        return f"posted and not completed: {waiting or 'nothing'}"

    async def quiet(self, clocks: int = 3000, limit: int = 500_000) -> None:
        """Until nothing has moved for ``clocks``; CheckError when that does not happen within ``limit``."""
        end = self.clock + limit
        while True:
            await self.step(limit, quiet=clocks)
            # The step also ends when its events fill the buffer.
            if self.native.counter("idle", A) and self.native.counter("idle", B) and self.native.still >= clocks:
                return
            if self.clock >= end:
                raise CheckError(f"clock {self.clock}: no rest of {clocks} clocks within {limit}; {self._open()}")

    # --- registers and commands ---------------------------------------------------------------------------------------------------------
    def _answered(self, nic: int, tag: int, value: int) -> None:
        self.answers[tag] = value
        expected = self._expected_status.pop(tag, None)
        if expected is not None and value & 0xFF != expected[0]:
            raise CheckError(f"NIC {'AB'[nic]}: {expected[1]} is answered {PostStatus(value & 0xFF).name}, not {PostStatus(expected[0]).name}")

    async def access(self, nic: int, address: int, value: int | None = None) -> tuple[int, int]:
        """One bus access, a write when ``value`` is given: the register's (or written) value and the bus response, 0 = OKAY, 2 = SLVERR."""
        self._tag += 1
        tag = self._tag
        self.native.queue(nic, [(1, address, 0, 0, tag, 0) if value is None else (0, address, value, 15, tag, 0)])
        await self.until(lambda: tag in self.answers, what=f"the answer to an access of register {address:#x}")
        answer = self.answers.pop(tag)
        return answer & 0xFFFF_FFFF, answer >> 32

    async def read_all(self, nic: int, addresses: Iterable[int]) -> list[int]:
        """Registers, one after the other without a pause."""
        tags = {self._tag + 1 + i: address for i, address in enumerate(addresses)}
        self._tag += len(tags)
        self.native.queue(nic, [(1, address, 0, 0, tag, 0) for tag, address in tags.items()])
        await self.until(lambda: all(tag in self.answers for tag in reversed(tags)), what="the answers to register reads")
        values = []
        for tag, address in tags.items():
            value = self.answers.pop(tag)
            if value >> 32:
                raise CheckError(f"NIC {'AB'[nic]}: register {address:#x} answers with response {value >> 32}")
            values.append(value)
        return values

    async def read(self, nic: int, address: int) -> int:
        """A register."""
        return (await self.read_all(nic, [address]))[0]

    def queue(self, nic: int, op: int, qp: int = 0, index: int = 0, data: Config | int = 0, expect: PostStatus | None = PostStatus.OK) -> int:
        """Queues a command and returns its tag; the status is checked when it comes (``expect`` None: it is left in ``answers``)."""
        bits = data.pack() if isinstance(data, Config) else int(data)
        words = (_BITS.get(op, 32) + 31) // 32
        self._tag += 1
        operations = [(0, _DATA0 + 4 * i, bits >> 32 * i & 0xFFFF_FFFF, 15, 0, 0) for i in range(words)]
        operations += [(0, _CMD_ARG, qp | index << 16, 15, 0, 0), (0, _CMD, op, 15, 0, 0), (2, _CMD_STATUS, 0, _BUSY, self._tag, 100_000)]
        self.native.queue(nic, operations)
        if expect is not None:
            name = Command(op).name if op in list(Command) else f"op {op}"
            self._expected_status[self._tag] = (int(expect), f"{name} of QP {qp}, index {index}")
        return self._tag

    async def command(self, nic: int, op: int, qp: int = 0, index: int = 0, data: Config | int = 0) -> PostStatus:
        """A command and its status."""
        tag = self.queue(nic, op, qp, index, data, expect=None)
        await self.until(lambda: tag in self.answers, what=f"the answer to command {op}")
        return PostStatus(self.answers.pop(tag) & 0xFF)

    async def settle(self) -> None:
        """Until every queued command is answered."""
        await self.until(lambda: not self._expected_status and not any(self.native.counter("host_waiting", nic) for nic in (A, B)),
                         what="the answer to all commands")  # fmt: skip

    # --- configuration ------------------------------------------------------------------------------------------------------------------
    def ip(self, nic: int, ipv4: bool = False) -> int:
        """Address of plane 0."""
        return 0x0A00_0010 + (nic << 8) if ipv4 else 0x2001_0DB8 << 96 | (nic + 1) << 32 | 0x10

    @staticmethod
    def mac(nic: int) -> int:
        """MAC of plane 0."""
        return 0x02_00_00_00_00_10 | nic << 8

    def ev_value(self, nic: int, qp: int, evi: int) -> int:
        """Entropy value of an EV: all different."""
        return (0xC000 | nic << 13 | qp << 6 | evi) << 16 | 0x5000 + evi * 0x101

    def glob(self, nic: int, **changes: int) -> GlobalConfig:
        """The global configuration of a NIC with some fields changed."""
        config = GlobalConfig(local_ip6=self.ip(nic), local_ip4=self.ip(nic, True), local_mac=self.mac(nic), **changes)
        config.validate(self.p)  # type: ignore[arg-type]  # Params has every field of Sizes
        return config

    async def globals(self, **changes: int) -> None:
        """SET_GLOBAL on both NICs, and one writable region over the receive buffers of each."""
        for nic in (A, B):
            self.queue(nic, Command.SET_GLOBAL, data=self.glob(nic, **changes))
            self.queue(nic, Command.SET_REGION, index=0, data=Region(
                rkey=RKEY + 256 * nic, va=TARGET_BASE, length=MEMORY_BYTES - TARGET_BASE, host=TARGET_BASE, write=1, valid=1))  # fmt: skip
        await self.settle()

    async def connect(self, qp_a: int = 0, qp_b: int | None = None, *, psn_a: int | None = None, psn_b: int | None = None,
                      active: int | None = None, receives: int = 8, glob: dict[str, int] | None = None, **config: int) -> None:  # fmt: skip
        """Two QPs become each other's peers and go to RTS. The first connection configures the NICs (``glob``).

        ``active``: ACTIVE EVs per plane (default: the preset's); the others are BACKUP. ``receives``: entries posted at each side.
        ``config``: fields of QpConfig for both sides.
        """
        qp_b = qp_a if qp_b is None else qp_b
        if not self.peer:
            await self.globals(**(glob or {}))
        self.peer[A, qp_a], self.peer[B, qp_b] = (B, qp_b), (A, qp_a)
        active = self.p.active_evs if active is None else active
        psns = [self.rng.getrandbits(24) if psn is None else psn for psn in (psn_a, psn_b)]
        ipv4 = config.get("ipv4", 0)
        for nic, qp, other in ((A, qp_a, qp_b), (B, qp_b, qp_a)):
            fields: dict[str, int] = {
                "dest_qpn": self.p.qpn_base + other, "peer_ip": self.ip(1 - nic, bool(ipv4)), "peer_mac": self.mac(1 - nic), "sq_psn": psns[nic],
                "rq_psn": psns[1 - nic], "req_mpr": self.p.window, "rsp_mpr": self.p.window, "peer_max_wimm": self.p.max_wimm,
                "path_credit": default_path_credit(self.p.window, active * self.p.planes), "ev_min_active": self.p.planes,
                "lfsr_seed": self.rng.randrange(1, 1 << 16),
            }  # fmt: skip
            qp_config = QpConfig(**(fields | config))
            qp_config.validate(self.p)  # type: ignore[arg-type]
            self.queue(nic, Command.MODIFY, qp, data=int(QpState.INIT))
            self.queue(nic, Command.SET_QP, qp, data=qp_config)
            for evi in range(self.p.planes * self.p.evs):
                good = int(evi % self.p.evs < active)
                value = self.ev_value(nic, qp, evi) & (0xFFFF if ipv4 else 0xFFFF_FFFF)
                self.queue(nic, Command.SET_EV, qp, evi, EvConfig(value, good, int(Health.GOOD)))
            for state in (QpState.RTR, QpState.RTS):
                self.queue(nic, Command.MODIFY, qp, data=int(state))
            for _ in range(receives):
                self.post_recv(nic, qp)
        await self.settle()

    # --- work ---------------------------------------------------------------------------------------------------------------------------
    def source(self, nic: int, data: bytes, offset: int | None = None) -> int:
        """A send buffer with ``data`` in it; ``offset``: address modulo 4096 (default: anything)."""
        at = self._take(nic, 0, len(data), offset)
        self.native.write(nic, at, data)
        return at

    def target(self, nic: int, length: int, offset: int | None = None) -> int:
        """A receive buffer, filled with the guard byte from GUARD bytes before to GUARD bytes behind it."""
        at = self._take(nic, 1, length, offset)
        self.native.write(nic, at - GUARD, bytes([GUARD_BYTE]) * (length + 2 * GUARD))
        return at

    def _take(self, nic: int, which: int, length: int, offset: int | None) -> int:
        start = self._next[nic][which] + 2 * GUARD
        at = start + self.rng.randrange(64) if offset is None else (start + 4095 - offset & ~4095) + offset
        self._next[nic][which] = at + length
        limit = (TARGET_BASE, MEMORY_BYTES)[which]
        if at + length + GUARD > limit:
            raise ValueError(f"no room for {length} bytes of buffer below {limit:#x}: use smaller or fewer messages")
        return at

    def post_recv(self, nic: int, qp: int = 0, expect: PostStatus = PostStatus.OK) -> int:
        """Posts a receive entry; returns its wr_id."""
        self._tag += 1
        wr_id = 0xBEEF_0000_0000 | nic << 40 | self._tag
        self.queue(nic, Command.POST_RECV, qp, data=wr_id, expect=expect)
        if expect == PostStatus.OK:
            self.receives.setdefault((nic, qp), deque()).append((wr_id, None))
        return wr_id

    def write(self, nic: int, length: int | None = None, qp: int = 0, imm: int | None = None, *, data: bytes | None = None, source: int | None = None,
              target: int | None = None, source_offset: int | None = None, target_offset: int | None = None, rkey: int | None = None,
              expect: PostStatus = PostStatus.OK, status: WcStatus = WcStatus.SUCCESS) -> Message:  # fmt: skip
        """Posts a write of ``length`` random bytes (or ``data``), a WriteIMM when ``imm`` is given, from ``nic`` to its peer.

        Buffers are made unless given by address. ``expect``: the status of the post; ``status``: how it must complete.
        """
        other, other_qp = self.peer[nic, qp]
        if data is None:
            data = self.rng.randbytes(length if length is not None else 1000)
        source = self.source(nic, data, source_offset) if source is None else source
        target = self.target(other, len(data), target_offset) if target is None else target
        self._tag += 1
        message = Message(nic, qp, 0x1_0000_0000 | self._tag, target, data, imm, status)
        request = WorkRequest(int(imm is not None), source, target, len(data), RKEY + 256 * other if rkey is None else rkey, imm or 0, message.wr_id)
        self.queue(nic, Command.POST, qp, data=request, expect=expect)
        if expect == PostStatus.OK:
            self.messages.append(message)
            self.sends.setdefault((nic, qp), deque()).append(message)
            if imm is not None:
                self.imms.setdefault((other, other_qp), deque()).append(message)
        return message

    def _completed(self, nic: int, clock: int, unanswered: int, data: bytes) -> None:
        info, low, high, length, imm = unpack("<5I", data)
        done = Completion(nic, info & 0xFFFF, info >> 30 & 1, info >> 16 & 0xFF, low | high << 32, length, imm, clock, unanswered)
        self.completions.append(done)
        if not self.check_completions:
            return
        key = (nic, done.qp)
        if not done.recv:
            queue = self.sends.get(key)
            if not queue:
                raise CheckError(f"a completion that nobody waits for: {done}")
            message = queue.popleft()
            wanted = (message.wr_id, int(message.status), len(message.data))
        else:
            entries, arriving = self.receives.get(key), self.imms.get(key)
            if not entries:
                raise CheckError(f"a receive completion without a receive entry: {done}")
            wr_id, _ = entries.popleft()
            if done.status == WcStatus.FLUSHED:
                wanted = (wr_id, int(WcStatus.FLUSHED), done.length)
            elif not arriving:
                raise CheckError(f"a receive completion without a WriteIMM: {done}")
            else:
                message = arriving.popleft()
                wanted = (wr_id, int(WcStatus.SUCCESS), len(message.data))
                if done.imm != message.imm:
                    raise CheckError(f"the immediate should be {message.imm:#x}: {done}")
        if (done.wr_id, done.status, done.length) != wanted:
            raise CheckError(f"the next completion should have wr_id {wanted[0]:#x}, status {WcStatus(wanted[1]).name}, length {wanted[2]}: {done}")

    async def done(self, clocks: int = 1_000_000) -> None:
        """Until every posted write has completed and every WriteIMM has arrived."""
        await self.settle()
        await self.until(lambda: not any(self.sends.values()) and not any(self.imms.values()), clocks, "the completion of all messages")

    # --- end ----------------------------------------------------------------------------------------------------------------------------
    def guards(self) -> None:
        """Every successful message is in place, byte for byte, and nothing around it has changed."""
        for message in self.messages:
            other = self.peer[message.nic, message.qp][0]
            size = len(message.data)
            found = self.native.read(other, message.target - GUARD, size + 2 * GUARD)
            guard = bytes([GUARD_BYTE]) * GUARD
            inside = message.data if message.status == WcStatus.SUCCESS else found[GUARD : GUARD + size]
            wanted = guard + inside + guard
            if found != wanted:
                at = next(i for i in range(len(found)) if found[i] != wanted[i])
                raise CheckError(
                    f"NIC {'AB'[other]}: byte {at - GUARD} of the {size} bytes at {message.target:#x} is {found[at]:#x}, should be {wanted[at]:#x}"
                )

    def faults(self) -> dict[str, int]:
        """What the fabric did, summed over links."""
        return {name: sum(self.native.counter(name, nic, plane) for nic in (A, B) for plane in range(self.p.planes)) for name in LINK_COUNTERS}

    async def counters(self, nic: int) -> dict[str, int]:
        """Every counter register of a NIC: drops by cause, and per plane ``tx_frames0`` and so on."""
        at = {name: regmap.COUNTER_BASE + 4 * i for i, name in enumerate(regmap.COUNTERS)}
        for plane in range(self.p.planes):
            at |= {f"{name}{plane}": regmap.plane_counter(plane, name) for name in regmap.PLANE_COUNTERS}
        return dict(zip(at, await self.read_all(nic, at.values()), strict=True))

    async def finish(self, settle_clocks: int = 3000) -> None:
        """Everything comes to rest; every check that needs no attention is made; the figures go into the report."""
        await self.settle()
        await self.quiet(settle_clocks)
        if self.check_completions and (any(self.sends.values()) or any(self.imms.values())):
            raise CheckError(f"at rest, but {self._open()}")
        counters = [await self.counters(nic) for nic in (A, B)]
        if self.check_memory:
            self.guards()
        verdict.links(self.native, self.p, counters)
        summary: dict[str, Any] = {}
        if self.lockstep is not None:
            self._drain()
            summary = self.lockstep.finish(self.clock)
            verdict.hardware(self.native, summary, counters)
            if missing := self.wanted_kinds - set(summary["kinds"]):
                raise CheckError(f"the run was to show records of {', '.join(sorted(missing))}, but has none; seen: {summary['kinds']}")
            if summary["records"] < self.wanted_records:
                raise CheckError(f"{summary['records']} records were compared, the run was to bring {self.wanted_records}")
        self.native.capture("")
        captured = verdict.captures(self.native, self.p, self.run.out / "plane", self.wire.udp_port, self.rng)
        spent = time.perf_counter() - self.started
        frames = self.faults()["sent"]
        self.run.report(clocks=self.clock, frames=frames, records=summary.get("records", 0), seconds=round(spent, 2),
                        clocks_per_second=round(self.clock / spent), frames_per_second=round(frames / spent),
                        **{f"fabric_{name}": value for name, value in self.faults().items() if value}, kinds=summary.get("kinds", {}),
                        captured=captured, drops=summary.get("drops", []))  # fmt: skip

    def first_difference(self) -> None:
        """Raises the lockstep's report if hardware and model differ by now: it says more than a check that failed later."""
        if self.lockstep is not None:
            self.lockstep.finish(self.clock, quiet=False)

    def close(self) -> None:
        """Ends the lockstep's process and the captures."""
        self.native.capture("")
        if isinstance(self.lockstep, RemoteLockstep):
            self.lockstep.close()


__all__ = ["A", "B", "CheckError", "Completion", "LockstepError", "Message", "System"]
