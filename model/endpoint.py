"""A whole NIC in software: requestor, responder, regions, ports and host memory, driven by itself. Usable without hardware.

Application view: :meth:`Endpoint.command` (what a host can do, with its status), :meth:`Endpoint.configure_qp`, post, poll, memory. Network view:
:meth:`Endpoint.receive`, :meth:`Endpoint.run`, :meth:`Endpoint.next_deadline`. Every due step is executed at once and every frame departs in
the tick of its step, so all free choices of hardware are taken the same way: responder before requestor, oldest first, all planes have room.
Time is an argument everywhere: 32-bit ticks of 128 ns, never going back. Rules: docs/spec-endpoint.md (MRC-REQ-260..277).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .config import Config, EvConfig, GlobalConfig, QpConfig, Region, Sizes, WorkRequest
from .end_packets import Addresser, address_ok, wire_tick
from .requestor import Requestor
from .responder import Responder
from .rsp_state import RecvCompleteOut, RevRow, Rx
from .spec import Command, Drop, Kind, Opcode, PostStatus, QpState, WcStatus
from .wire import WireConfig, parse
from .wire_packet import Packet

_QP_COMMANDS = frozenset({Command.SET_QP, Command.SET_EV, Command.EV_STATE, Command.MODIFY, Command.POST, Command.POST_RECV})
_FEEDBACK = frozenset({Opcode.SACK, Opcode.NACK, Opcode.ACK})
_CONNECTED = (QpState.RTR, QpState.RTS)


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


class Endpoint:
    """One NIC. ``memory_size`` bytes of host memory start at host address ``memory_base``."""

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
        if op not in Command.__members__.values():
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
            req.port(now, self.up)
            rsp.port(now, self.up)
            return PostStatus.OK
        if op in (Command.POST, Command.POST_RECV):
            return self._post(op, qp, config, now)
        if op == Command.SET_REGION:
            return PostStatus(rsp.control(0, now, op, index, config).status)
        if op == Command.MODIFY and config == QpState.RESET:
            self._work(now)  # what is due leaves first
        status = PostStatus(req.control(qp, now, op, index, config).status)
        if op in (Command.SET_EV, Command.EV_STATE):
            return status
        rsp.control(qp, now, op, index, config)
        if status != PostStatus.OK:
            return status
        if op == Command.SET_GLOBAL:
            assert isinstance(config, GlobalConfig)
            self.addresser = Addresser(config, self.sizes.qpn_base)
        elif config == QpState.ERROR and op == Command.MODIFY:
            req.qp_error(qp, now, WcStatus.LOCAL_QP_OPERATION)
            rsp.qp_error(qp, now, WcStatus.LOCAL_QP_OPERATION)
        elif config == QpState.RESET and op == Command.MODIFY:
            self._open[qp] = 0
        return status
