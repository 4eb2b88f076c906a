"""A whole NIC in software: requestor, responder, regions, ports and host memory, driven by itself. Usable without hardware.

Application view (:mod:`model.end_host`): command, configure_qp, register, post_write, post_write_imm, post_recv, poll, memory. Network view, here:
:meth:`Endpoint.receive`, :meth:`Endpoint.run`, :meth:`Endpoint.next_deadline`. Every due step is executed at once and every frame departs in
the tick of its step, so all free choices of hardware are taken the same way: responder before requestor, oldest first, all planes have room.
Time is an argument everywhere: ticks of 128 ns, of any size (the state keeps 32 bits), never going back. Rules: docs/spec-endpoint.md.
"""

from __future__ import annotations

from .end_host import Completion, EndpointError, EndpointHost
from .end_packets import address_ok, wire_tick
from .req_results import SendOut
from .req_timer import EV, TAIL
from .rsp_state import RecvCompleteOut, RevRow, Rx
from .spec import Drop, Kind, Opcode, QpState, WcStatus
from .wire import WireConfig, parse
from .wire_packet import Packet

__all__ = ["Completion", "Endpoint", "EndpointError"]

_M32 = (1 << 32) - 1
_CONNECTED = (QpState.RTR, QpState.RTS)
_ENDPOINT_OPCODES = frozenset({Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_RESPONSE})
_BEFORE_RECEIVE = frozenset({Kind.QP_ERROR, Kind.ADVANCE, Kind.RECV_COMPLETE})


class Endpoint(EndpointHost):
    """One NIC. After :meth:`receive` or a command, :meth:`run` at the same tick does what follows and hands out the frames."""

    # --- network ----------------------------------------------------------------------------------------------------------------------
    @property
    def wire(self) -> WireConfig:
        """Settings of the byte codec that this NIC uses."""
        return self.addresser.wire

    def receive(self, plane: int, frame: bytes | Packet, now: int) -> None:
        """A frame (Ethernet, no FCS), or the packet in it, arrives on ``plane``. Any bytes are allowed: bad ones are dropped and counted."""
        if not 0 <= plane < self.sizes.planes:
            raise ValueError(f"plane {plane}: this NIC has planes 0..{self.sizes.planes - 1}")
        if not self.up >> plane & 1:
            self.nic_drops[Drop.PORT_DOWN] += 1
            return
        packet = frame if isinstance(frame, Packet) else parse(frame, self.wire)
        if isinstance(packet, Drop):
            self.nic_drops[packet] += 1
            return
        if packet.opcode in _ENDPOINT_OPCODES:
            self.nic_drops[Drop.OPCODE] += 1
            return
        index = packet.dest_qp - self.sizes.qpn_base
        known = int(0 <= index < self.sizes.qps)
        if not known:
            index = 0
        config = self.responder.config[index]
        addr_ok = address_ok(packet, self.responder.glob, config, self.sizes.planes)
        pkey_ok = int(packet.pkey == config.pkey)
        self._settle(index, now)
        if packet.opcode == Opcode.SACK:
            self.requestor.sack(index, packet, now, known, addr_ok, pkey_ok)
        elif packet.opcode == Opcode.NACK:
            self.requestor.nack(index, packet, now, known, addr_ok, pkey_ok)
        elif packet.opcode == Opcode.ACK:
            self.requestor.ack(index, packet, now, known, addr_ok, pkey_ok)
        else:
            out = self.responder.receive(index, now, Rx.of(packet, plane, known, addr_ok, pkey_ok))
            if out.write:
                self._place(index, out.addr, packet.payload, now)

    def _place(self, index: int, address: int, payload: bytes, now: int) -> None:
        offset = self._offset(address, len(payload))
        if offset is None:
            self.responder.write_error(index, now)
            self._tell_requestor(index, now)
        else:
            self.memory[offset : offset + len(payload)] = payload

    def _settle(self, index: int, now: int) -> None:
        """Steps that must come before the next frame of a QP."""
        while (steps := self.responder.pending(index, now)) and steps[0] in _BEFORE_RECEIVE:
            self._respond(index, steps[0], now)
        self._settle_requestor(index, now)

    def run(self, now: int) -> list[tuple[int, Packet]]:
        """Execute every due step of both owners; returns the frames that leave at this tick: plane and packet, in order."""
        self._work(now)
        out, self._out = self._out, []
        return out

    # --- responder ----------------------------------------------------------------------------------------------------------------------
    def _row(self, index: int, plane: int) -> RevRow:
        qp, evs = self.requestor.qp[index], self.sizes.evs
        row = qp.path.planes[plane]
        denied = ~(row.good | row.skip | row.bad) & (1 << evs) - 1
        return RevRow(plane, row.good, row.active, denied, [qp.ev[plane * evs + i].value for i in range(evs)])

    def _respond(self, index: int, kind: Kind, now: int) -> None:
        rsp = self.responder
        if kind == Kind.QP_ERROR:
            rsp.qp_error(index, now, WcStatus.LOCAL_QP_OPERATION)
            self._tell_requestor(index, now)
        elif kind == Kind.ADVANCE:
            rsp.advance(index, now)
        elif kind == Kind.RECV_COMPLETE:
            self._received(index, rsp.recv_complete(index, now))
        elif kind == Kind.FLUSH:
            rsp.flush(index, now)
        else:
            self._emit(index, kind, now)

    def _received(self, index: int, out: RecvCompleteOut) -> None:
        if out.status == WcStatus.FLUSHED or (out.imm_valid and out.status == WcStatus.SUCCESS):
            self._complete(Completion(index, 1, WcStatus(out.status), out.wr_id, out.length, out.imm))

    def _complete(self, completion: Completion) -> None:
        self._open[completion.qp] -= 1
        self._cq.append(completion)

    def _emit(self, index: int, kind: Kind, now: int) -> None:
        rsp, config, make = self.responder, self.responder.config[index], self.addresser
        plane = rsp.emit_plane(index)
        row = None if plane is None else self._row(index, plane)
        if kind == Kind.EMIT_ACK:
            ack = rsp.emit_ack(index, now, self.up, row)
            if not ack.dropped:
                self._out.append((ack.plane, make.ack(config, ack)))
        elif kind == Kind.EMIT_NACK:
            nack = rsp.emit_nack(index, now, self.up, row)
            if not nack.dropped:
                self._out.append((nack.plane, make.nack(index, config, nack)))
        else:
            sack = rsp.emit_sack(index, now, self.up, row)
            if not sack.dropped:
                self._out.append((sack.plane, make.sack(index, config, sack)))

    def _tell_requestor(self, index: int, now: int) -> None:
        qp = self.requestor.qp[index]
        if qp.state in _CONNECTED:
            self.requestor.qp_error(index, WcStatus.LOCAL_QP_OPERATION, qp.msg_done, now)

    def _tell_responder(self, index: int, now: int) -> None:
        if self.responder.qp[index].state in _CONNECTED:
            self.responder.qp_error(index, now, WcStatus.LOCAL_QP_OPERATION)

    # --- requestor ----------------------------------------------------------------------------------------------------------------------
    def _settle_requestor(self, index: int, now: int) -> None:
        """QP_ERROR, COMPLETE, RETIRE, JUDGE, TIMEOUT, EV_AGE steps that are due."""
        before = self.requestor.qp[index].state
        for done in self.requestor.settle(index, now):
            self._complete(Completion(index, 0, WcStatus(done.status), done.wr_id, done.length, 0))
        if self.requestor.qp[index].state == QpState.ERROR != before:
            self._tell_responder(index, now)

    def _transmit(self, index: int, out: SendOut, now: int) -> None:
        """The frame of a SEND step departs in its tick, unless its source cannot be read."""
        tick = wire_tick(now)
        offset = self._offset(out.laddr, out.plen)
        if offset is None:
            self.requestor.depart(index, 0, out.psn, out.evi, out.send_tick, tick, 0, 1, now)
            return
        payload = bytes(self.memory[offset : offset + out.plen])
        self._out.append((out.plane, self.addresser.data(self.requestor.qp[index].config, out, payload, tick)))
        self.requestor.depart(index, 0, out.psn, out.evi, out.send_tick, tick, 0, 0, now)

    def _probe(self, index: int, slot: int, now: int) -> None:
        out = self.requestor.probe(index, slot, now, self.up)
        if out.send_tick:
            tick = wire_tick(now)
            self._out.append((out.plane, self.addresser.probe(index, self.requestor.qp[index].config, out, tick)))
            self.requestor.depart(index, 1, 0, out.evi, out.send_tick, tick, 0, 0, now)

    def _request(self, index: int, now: int) -> None:
        req = self.requestor
        self._settle_requestor(index, now)
        for slot in (TAIL, EV):
            if req.qp[index].state == QpState.RTS and req.probe_possible(index, slot, now, self.up):
                self._probe(index, slot, now)
        while (out := req.try_send(index, now, self.up)) is not None:
            self._transmit(index, out, now)
        self._settle_requestor(index, now)

    # --- time -------------------------------------------------------------------------------------------------------------------------
    def _work(self, now: int) -> None:
        self._now = now
        for index in range(self.sizes.qps):
            while True:
                while steps := self.responder.pending(index, now):
                    self._respond(index, steps[0], now)
                self._request(index, now)
                if not self.responder.pending(index, now):
                    break

    def next_deadline(self) -> int | None:
        """The next tick at which time alone makes a step due, None: never. What was due at the newest run was done, or waits for an event."""
        now = self._now
        found = []
        for index in range(self.sizes.qps):
            deadline = self.requestor.next_deadline(index, now)
            if deadline is not None:
                found.append(deadline)
            flush = self.responder.next_deadline(index)
            if flush is not None:
                found.append(now + (flush - now & _M32))
        return min((deadline for deadline in found if deadline > now), default=None)
