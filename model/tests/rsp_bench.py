"""A responder with its QP in RTS, driven step by step: what the responder's tests share."""

from __future__ import annotations

from dataclasses import replace

from model.config import GlobalConfig, QpConfig, Region, Sizes
from model.responder import Responder
from model.rsp_state import EmitAckOut, EmitNackOut, EmitSackOut, ReceiveOut, RecvCompleteOut, RevRow, RspQp, Rx
from model.spec import PSN_MASK, Command, Drop, Kind, Opcode, PostStatus, QpState, WcStatus

MTU = 256
START = 0xFFFFF0  # the PSN wraps in every test
RKEY, VA, HOST, LENGTH = 0x73, 0x10_0000, 0x4000, 1 << 20  # the low bits of the R_Key name region 3


class Bench:
    """One QP (index 1 of two) of a responder; PSNs are given relative to the first one."""

    index = 1

    def __init__(self, start: int = START, receives: int = 4, mpr: int = 128, **glob: int) -> None:
        self.r = Responder(Sizes(window=max(128, mpr)))
        self.start, self.now, self.room = start, 1000, 3
        settings = {"sack_threshold": 16384, "sack_flush_time": 47, "base_rtt": 94, **glob}
        self.control(Command.SET_GLOBAL, replace(self.r.glob, **settings))
        self.control(Command.SET_REGION, Region(rkey=RKEY, va=VA, length=LENGTH, host=HOST, write=1, valid=1), 3)
        self.control(Command.MODIFY, QpState.INIT)
        self.control(Command.SET_QP, replace(QpConfig(), mtu=0, rq_psn=start, rsp_mpr=mpr, trim_nack=1))
        for wr_id in range(receives):
            assert self.r.post_recv(self.index, self.now, 100 + wr_id).status == PostStatus.OK
        self.control(Command.MODIFY, QpState.RTR)
        self.control(Command.MODIFY, QpState.RTS)
        self.done: list[RecvCompleteOut] = []

    @property
    def qp(self) -> RspQp:
        return self.r.qp[self.index]

    def control(self, op: int, config: GlobalConfig | QpConfig | Region | int, arg: int = 0) -> int:
        return self.r.control(self.index, self.now, op, arg, config).status

    def psn(self, k: int) -> int:
        return self.start + k & PSN_MASK

    def packet(self, k: int, opcode: int = Opcode.WRITE_MIDDLE, **fields: int) -> Rx:
        """Packet k of a 1000-packet message, with the lengths right for its opcode."""
        imm = 4 if opcode in (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM) else 0
        dmalen = MTU if opcode in (Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM) else 1000 * MTU
        rx = Rx(opcode, self.psn(k), plen=MTU, ts=1, tx_timestamp=1 + k & 0xFFFF, ev=0xE0000 + k, rkey=RKEY, va=VA + MTU * k,
                dmalen=dmalen, udp_len=8 + 12 + 4 + 4 + 16 + imm + MTU + 4)  # fmt: skip
        return replace(rx, **fields)

    def receive(self, k: int, opcode: int = Opcode.WRITE_MIDDLE, no_resource: int = 0, **fields: int) -> ReceiveOut:
        return self.r.receive(self.index, self.now, self.packet(k, opcode, **fields), no_resource)

    def settle(self) -> None:
        """ADVANCE and RECV_COMPLETE steps until none is due, and the QP_ERROR that one asks for."""
        while steps := [k for k in self.pending() if k in (Kind.ADVANCE, Kind.RECV_COMPLETE, Kind.QP_ERROR)]:
            if steps[0] == Kind.ADVANCE:
                self.r.advance(self.index, self.now)
            elif steps[0] == Kind.RECV_COMPLETE:
                self.done.append(self.r.recv_complete(self.index, self.now))
            else:
                self.r.qp_error(self.index, self.now, WcStatus.LOCAL_QP_OPERATION)

    def take(self, k: int, opcode: int = Opcode.WRITE_MIDDLE, **fields: int) -> ReceiveOut:
        """RECEIVE and everything that must follow it at once."""
        out = self.receive(k, opcode, **fields)
        self.settle()
        return out

    def pending(self) -> list[Kind]:
        return self.r.pending(self.index, self.now)

    def row(self, plane: int) -> RevRow:
        return RevRow(plane, good=3, active=3, denied=0, values=[plane << 8, plane << 8 | 1])

    def _row(self) -> RevRow | None:
        plane = self.r.emit_plane(self.index)
        return None if plane is None else self.row(plane)

    def sack(self) -> EmitSackOut:
        return self.r.emit_sack(self.index, self.now, self.room, self._row())

    def nack(self) -> EmitNackOut:
        return self.r.emit_nack(self.index, self.now, self.room, self._row())

    def ack(self) -> EmitAckOut:
        return self.r.emit_ack(self.index, self.now, self.room, self._row())

    def drain(self) -> list[EmitSackOut | EmitNackOut | EmitAckOut]:
        """Every pending answer, in order of priority."""
        out: list[EmitSackOut | EmitNackOut | EmitAckOut] = []
        while steps := [k for k in self.pending() if k in (Kind.EMIT_ACK, Kind.EMIT_NACK, Kind.EMIT_SACK)]:
            out.append(self.ack() if steps[0] == Kind.EMIT_ACK else self.nack() if steps[0] == Kind.EMIT_NACK else self.sack())
        return out

    def dropped(self, cause: Drop) -> int:
        return self.r.drops[cause]
