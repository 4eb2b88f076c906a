"""The application's view of an endpoint: host memory, commands with their status, posting and polling. Base of :mod:`model.endpoint`.

Rules: docs/spec-endpoint.md (MRC-REQ-260..263, 277).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .config import Config, EvConfig, GlobalConfig, QpConfig, Region, Sizes, WorkRequest
from .end_packets import Addresser
from .requestor import Requestor
from .responder import Responder
from .spec import Command, Drop, PostStatus, QpState, WcStatus
from .wire_packet import Packet

_KNOWN = frozenset(Command)
_QP_COMMANDS = frozenset({Command.SET_QP, Command.SET_EV, Command.EV_STATE, Command.MODIFY, Command.POST, Command.POST_RECV})


@dataclass(frozen=True, slots=True)
class Completion:
    """A work completion (``layouts.completion``). ``recv`` 1: a receive entry, consumed by a WriteIMM or flushed."""

    qp: int
    recv: int
    status: WcStatus
    wr_id: int
    length: int
    imm: int


class EndpointError(Exception):
    """A request that the NIC refused: the command and its status."""


class EndpointHost:
    """Host side of one NIC. ``memory_size`` bytes of host memory start at host address ``memory_base``. ValueError for wrong sizes."""

    def __init__(self, sizes: Sizes, glob: GlobalConfig, memory_size: int = 1 << 20, memory_base: int = 0) -> None:
        glob.validate(sizes)
        if memory_size < 0 or memory_base < 0:
            raise ValueError(f"memory of {memory_size} bytes at {memory_base:#x}: neither may be negative")
        self.sizes = sizes
        self.memory = bytearray(memory_size)
        self.memory_base = memory_base
        self.requestor = Requestor(sizes)
        self.responder = Responder(sizes)
        self.nic_drops = [0] * len(Drop)  # of the checks before the owners
        self.up = (1 << sizes.planes) - 1
        self.cq_depth = sizes.qps * (sizes.msg_slots + sizes.rq_entries)
        self._cq: deque[Completion] = deque()
        self._open = [0] * sizes.qps  # posted work whose completion is still to come
        self._out: list[tuple[int, Packet]] = []
        self.addresser = Addresser(glob, sizes.qpn_base)
        self._now = 0  # of the newest run
        self.command(Command.SET_GLOBAL, config=glob)

    # --- host memory ------------------------------------------------------------------------------------------------------------------
    def _offset(self, address: int, length: int) -> int | None:
        offset = address - self.memory_base
        return offset if 0 <= offset and offset + length <= len(self.memory) else None

    def write_memory(self, address: int, data: bytes) -> None:
        """Put ``data`` into host memory. ValueError when the range is not host memory."""
        offset = self._offset(address, len(data))
        if offset is None:
            raise ValueError(f"[{address:#x}, +{len(data)}) is outside the host memory of {len(self.memory)} bytes at {self.memory_base:#x}")
        self.memory[offset : offset + len(data)] = data

    def read_memory(self, address: int, length: int) -> bytes:
        """``length`` bytes of host memory. ValueError when the range is not host memory."""
        offset = self._offset(address, length)
        if offset is None:
            raise ValueError(f"[{address:#x}, +{length}) is outside the host memory of {len(self.memory)} bytes at {self.memory_base:#x}")
        return bytes(self.memory[offset : offset + length])

    # --- commands ---------------------------------------------------------------------------------------------------------------------
    def command(self, op: int, qp: int = 0, index: int = 0, config: Config | int = 0, now: int = 0) -> PostStatus:
        """One host command: ``config`` is the class of :mod:`model.config` that the command carries, the QpState of MODIFY, the wr_id of
        POST_RECV, 1 or 0 for EV_STATE (denied) and PORT (up). The status is what the mailbox would show.

        TypeError when ``config`` does not fit the command.
        """
        if op not in _KNOWN:
            return PostStatus.BAD_OPCODE
        if op in _QP_COMMANDS and not 0 <= qp < self.sizes.qps:
            return PostStatus.BAD_QP
        limit = {Command.SET_EV: self.sizes.total_evs, Command.EV_STATE: self.sizes.total_evs, Command.SET_REGION: self.sizes.regions,
                 Command.PORT: self.sizes.planes}.get(Command(op))  # fmt: skip
        if limit is not None and not 0 <= index < limit:
            return PostStatus.BAD_QP
        return self._dispatch(Command(op), qp, index, config, now)

    def _dispatch(self, op: Command, qp: int, index: int, config: Config | int, now: int) -> PostStatus:
        req, rsp = self.requestor, self.responder
        if op == Command.NOP:
            return PostStatus.OK
        if op == Command.PORT:
            self.up = self.up | 1 << index if config else self.up & ~(1 << index)
            req.port(self.up, now)
            rsp.port(now, self.up)
            return PostStatus.OK
        if op in (Command.POST, Command.POST_RECV):
            return self._post(op, qp, config, now)
        if op == Command.SET_REGION:
            return PostStatus(rsp.control(0, now, op, index, config).status)
        if op == Command.MODIFY and config == QpState.RESET:
            self._work(now)  # what waits to leave, leaves first
        status = PostStatus(req.control(op, qp, index, config, now).status)
        if op in (Command.SET_EV, Command.EV_STATE):
            return status
        rsp.control(qp, now, op, index, config)
        if status == PostStatus.OK and op == Command.SET_GLOBAL:
            self.addresser = Addresser(req.glob, self.sizes.qpn_base)
        elif op == Command.MODIFY and config == QpState.RESET:
            self._open[qp] = 0
        return status

    def _post(self, op: Command, qp: int, config: Config | int, now: int) -> PostStatus:
        if sum(self._open) + len(self._cq) >= self.cq_depth:
            return PostStatus.FULL
        if op == Command.POST:
            if not isinstance(config, WorkRequest):
                raise TypeError(f"POST needs a WorkRequest, not {config!r}")
            status = self.requestor.post(qp, config, now).status
        elif isinstance(config, int):
            status = self.responder.post_recv(qp, now, config).status
        else:
            raise TypeError(f"POST_RECV needs a wr_id, not {config!r}")
        if status == PostStatus.OK:
            self._open[qp] += 1
        return PostStatus(status)

    def _must(self, op: Command, qp: int, index: int, config: Config | int, now: int) -> None:
        status = self.command(op, qp, index, config, now)
        if status != PostStatus.OK:
            raise EndpointError(f"{op.name} of QP {qp}, index {index}: the NIC answers {status.name}")

    def configure_qp(self, qp: int, config: QpConfig, evs: Sequence[EvConfig], now: int = 0) -> None:
        """Bring a QP from RESET to RTS. ``evs``: all EVs, index = plane x evs + index inside the plane. EndpointError when the NIC refuses."""
        config.validate(self.sizes)
        if len(evs) != self.sizes.total_evs:
            raise ValueError(f"{len(evs)} EVs given, this NIC has {self.sizes.total_evs} per QP")
        self._must(Command.MODIFY, qp, 0, QpState.INIT.value, now)
        self._must(Command.SET_QP, qp, 0, config, now)
        for index, ev in enumerate(evs):
            self._must(Command.SET_EV, qp, index, ev, now)
        self._must(Command.MODIFY, qp, 0, QpState.RTR.value, now)
        self._must(Command.MODIFY, qp, 0, QpState.RTS.value, now)

    def register(self, index: int, rkey: int, address: int, length: int, va: int | None = None, now: int = 0) -> None:
        """Make ``length`` bytes of host memory at ``address`` writable behind ``rkey``; remote addresses start at ``va`` (default: the same)."""
        region = Region(rkey=rkey, va=address if va is None else va, length=length, host=address, write=1, valid=1)
        region.validate(self.sizes)
        self._must(Command.SET_REGION, 0, index, region, now)

    def post_write(self, qp: int, laddr: int, raddr: int, length: int, rkey: int, wr_id: int = 0, now: int = 0) -> PostStatus:
        """Post an RDMA Write of ``length`` bytes from host address ``laddr`` to the peer's ``raddr``. The source must stay until completion."""
        return self.command(Command.POST, qp, 0, WorkRequest(laddr=laddr, raddr=raddr, length=length, rkey=rkey, wr_id=wr_id), now)

    def post_write_imm(self, qp: int, laddr: int, raddr: int, length: int, rkey: int, imm: int, wr_id: int = 0, now: int = 0) -> PostStatus:
        """Post an RDMA Write with Immediate; it consumes one of the peer's receive entries."""
        wr = WorkRequest(imm_valid=1, laddr=laddr, raddr=raddr, length=length, rkey=rkey, imm=imm, wr_id=wr_id)
        return self.command(Command.POST, qp, 0, wr, now)

    def post_recv(self, qp: int, wr_id: int, now: int = 0) -> PostStatus:
        """Post one receive entry."""
        return self.command(Command.POST_RECV, qp, 0, wr_id, now)

    def poll(self, count: int = 1 << 30) -> list[Completion]:
        """Take up to ``count`` completions, oldest first."""
        return [self._cq.popleft() for _ in range(min(count, len(self._cq)))]

    @property
    def drops(self) -> dict[Drop, int]:
        """Frames and items of feedback that were dropped or ignored, by cause; only causes that occurred."""
        sums = [sum(counts) for counts in zip(self.nic_drops, self.requestor.drops, self.responder.drops, strict=True)]
        return {cause: sums[cause] for cause in Drop if sums[cause]}

    def _work(self, now: int) -> None:
        """Execute every due step (:class:`model.endpoint.Endpoint`)."""
        raise NotImplementedError
