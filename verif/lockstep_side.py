"""One NIC in lockstep: each commit record is applied to the golden model, and what the record says is compared with what the model does."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from hdl.params import Params
from model.config import GlobalConfig, QpConfig, Sizes, StepError, WorkRequest
from model.end_packets import address_ok
from model.requestor import Requestor
from model.responder import Responder
from model.rsp_state import Answer, RevRow, Rx
from model.spec import DATA_OPCODES, Command, Drop, Ecn, Kind, Opcode, QpState, WcStatus
from model.wire_packet import Packet
from verif.lockstep_error import Mismatch
from verif.lockstep_wire import Expected, Wire, packet_differences
from verif.records import Decoder, Words, member_of

_M32 = (1 << 32) - 1
_DATA_EXT = ("rqmsn", "msn", "tx_timestamp", "va", "rkey", "dmalen", "imm")
_EXT = {
    "data": _DATA_EXT,
    "probe": ("probe_id", "tx_timestamp"),
    "sack": ("mflag", "pr", "entropy", "cack_psn", "mpr", "sack_offset", "sack_bitmap", "echo_timestamp", "rcvd_bytes"),
    "nack": ("nack_reason", "entropy", "nack_psn", "echo_timestamp"),
    "ack": ("syndrome", "aeth_msn"),
}
"""Extension fields that an owner reads."""
_OUT: dict[tuple[int, int], tuple[str, ...]] = {
    (0, Kind.CONTROL): ("status",),
    (0, Kind.PORT): ("up",),
    (0, Kind.QP_ERROR): ("cause", "msg"),
    (0, Kind.POST): ("status", "slot"),
    (0, Kind.SEND): ("rtx", "psn", "plane", "evi", "ev", "fallback", "opcode", "a", "laddr", "plen", "rqmsn", "msn", "va", "rkey", "dmalen", "imm",
                     "send_tick", "credit"),
    (0, Kind.DEPART): ("applied",),
    (0, Kind.SACK): ("drop", "newly", "evi", "ev_found", "matched"),
    (0, Kind.NACK): ("drop", "evi", "credit"),
    (0, Kind.ACK): ("drop",),
    (0, Kind.RETIRE): ("psn", "was_lost", "evi", "credit"),
    (0, Kind.JUDGE): ("psn", "evi", "proved", "credit"),
    (0, Kind.TIMEOUT): ("head_lost", "evi", "credit"),
    (0, Kind.PROBE): ("slot", "id", "plane", "evi", "ev", "send_tick"),
    (0, Kind.EV_AGE): ("evi",),
    (0, Kind.COMPLETE): ("msg", "status", "wr_id", "length"),
    (1, Kind.CONTROL): ("op", "index", "status"),
    (1, Kind.PORT): ("up",),
    (1, Kind.QP_ERROR): ("cause",),
    (1, Kind.RECEIVE): ("drop", "write", "addr", "no_resource"),
    (1, Kind.ADVANCE): ("cack_psn",),
    (1, Kind.FLUSH): (),
    (1, Kind.EMIT_ACK): ("dropped", "plane", "ev_in_plane", "ev", "syndrome", "psn", "aeth_msn"),
    (1, Kind.EMIT_NACK): ("dropped", "plane", "ev_in_plane", "ev"),
    (1, Kind.EMIT_SACK): ("dropped", "plane", "ev_in_plane", "ev", "cack_psn", "sack_offset", "sack_bitmap", "ack_psn_offset", "ooo_count",
                          "rcvd_bytes", "mpr"),
    (1, Kind.RECV_COMPLETE): ("psn", "imm_valid", "status", "wr_id", "length", "imm"),
    (1, Kind.POST_RECV): ("status", "wr_id"),
}  # fmt: skip
"""Outputs of a record that the model predicts, by owner and kind."""


def sizes_of(params: Params) -> Sizes:
    """The golden model's sizes of an instance."""
    names = Sizes.__dataclass_fields__
    return Sizes(**{name: getattr(params, name) for name in names})


class Side:
    """The golden NIC beside one hardware NIC."""

    def __init__(self, params: Params, memory_bytes: int, cross_clocks: int) -> None:
        self.p, self.cross_clocks = params, cross_clocks
        sizes = sizes_of(params)
        self.req, self.rsp = Requestor(sizes), Responder(sizes)
        zero = GlobalConfig.unpack(0)
        self.req.glob = self.rsp.glob = zero
        for qp in self.req.qp:
            qp.config = QpConfig.unpack(0)
        self.rsp.config = [QpConfig.unpack(0) for _ in range(sizes.qps)]
        self.decoders = (Decoder(params, 0), Decoder(params, 1))
        self.wire = Wire(params.planes, params.qpn_base, memory_bytes)
        self.seq = [0, 0]
        self.tick = [0, 0]
        self.kinds: Counter[tuple[int, int]] = Counter()
        self.last: tuple[deque[tuple[int, bytes]], deque[tuple[int, bytes]]] = (deque(maxlen=12), deque(maxlen=12))
        self.completions: tuple[deque[dict[str, int]], deque[dict[str, int]]] = (deque(), deque())
        self.host_error: set[tuple[int, int]] = set()  # (owner, QP): the host moved it to ERROR, the QP_ERROR is to come
        self.no_resource = 0
        ones = (1 << params.evs) - 1
        self._ones = ones
        row = tuple((0, 0, ones) for _ in range(params.planes))
        self.rows: list[deque[tuple[int, tuple[tuple[int, int, int], ...]]]] = [deque([(0, row)]) for _ in range(sizes.qps)]
        self.late: list[tuple[int, int, int, tuple[int, int, int]]] = []  # rows read that no requestor record has shown yet
        r, s = self._requestor(), self._responder()
        self._steps: tuple[dict[int, Callable[..., Any]], dict[int, Callable[..., Any]]] = (r, s)

    def _requestor(self) -> dict[int, Callable[..., Any]]:
        req = self.req
        return {
            Kind.CONTROL: self._req_control,
            Kind.PORT: lambda qp, now, b, w, clock: self._port(req, 0, clock, req.port(b["up"], now)),
            Kind.QP_ERROR: self._req_error,
            Kind.POST: lambda qp, now, b, w, clock: req.post(qp, WorkRequest.unpack(b["wr"]), now),
            Kind.SEND: self._send,
            Kind.DEPART: self._depart,
            Kind.SACK: lambda qp, now, b, w, clock: req.sack(qp, self._feedback(b, w, "sack"), now, b["rx"]["known"], b["rx"]["addr_ok"], b["rx"]["pkey_ok"]),
            Kind.NACK: lambda qp, now, b, w, clock: req.nack(qp, self._feedback(b, w, "nack"), now, b["rx"]["known"], b["rx"]["addr_ok"], b["rx"]["pkey_ok"]),
            Kind.ACK: lambda qp, now, b, w, clock: req.ack(qp, self._feedback(b, w, "ack"), now, b["rx"]["known"], b["rx"]["addr_ok"], b["rx"]["pkey_ok"]),
            Kind.RETIRE: lambda qp, now, b, w, clock: req.retire(qp, b["psn"], now),
            Kind.JUDGE: lambda qp, now, b, w, clock: req.judge(qp, b["psn"], now),
            Kind.TIMEOUT: lambda qp, now, b, w, clock: req.timeout(qp, now),
            Kind.PROBE: self._probe,
            Kind.EV_AGE: lambda qp, now, b, w, clock: req.ev_age(qp, b["evi"], now),
            Kind.COMPLETE: self._complete,
        }  # fmt: skip

    def _responder(self) -> dict[int, Callable[..., Any]]:
        rsp = self.rsp
        return {
            Kind.CONTROL: self._rsp_control,
            Kind.PORT: lambda qp, now, b, w, clock: self._port(rsp, 1, clock, rsp.port(now, b["up"])),
            Kind.QP_ERROR: self._rsp_error,
            Kind.RECEIVE: self._receive,
            Kind.ADVANCE: lambda qp, now, b, w, clock: rsp.advance(qp, now),
            Kind.FLUSH: lambda qp, now, b, w, clock: rsp.flush(qp, now),
            Kind.EMIT_ACK: self._emit,
            Kind.EMIT_NACK: self._emit,
            Kind.EMIT_SACK: self._emit,
            Kind.RECV_COMPLETE: self._recv_complete,
            Kind.POST_RECV: lambda qp, now, b, w, clock: rsp.post_recv(qp, now, b["wr_id"]),
        }

    # --- one record ---------------------------------------------------------------------------------------------------------------------
    def record(self, owner: int, clock: int, raw: bytes) -> None:
        """Applies a record. Raises Mismatch or StepError at a difference."""
        self.last[owner].append((clock, raw))
        decoder = self.decoders[owner]
        words = decoder.words(raw)
        kind, qp, seq, tick = decoder.head(words)
        if seq != self.seq[owner]:
            raise Mismatch("records do not follow each other", [("seq", seq, self.seq[owner])])
        self.seq[owner] = seq + 1 & _M32
        step = self._steps[owner].get(kind)
        if step is None or qp >= self.p.qps:
            raise Mismatch(f"kind {kind} of QP {qp} is no record of this owner")
        last = self.tick[owner]
        now = last + ((tick - last + (1 << 31) & _M32) - (1 << 31))  # 32 bits of a time that never goes back
        if now < last:
            raise Mismatch("time went back", [("tick", tick, last & _M32)])
        self.tick[owner] = now
        self.kinds[owner, kind] += 1
        body = decoder.body[kind](words)
        out = step(qp, now, body, words, clock)
        for name in _OUT[owner, kind]:
            if body[name] != getattr(out, name):
                wrong = [(n, body[n], getattr(out, n)) for n in _OUT[owner, kind] if body[n] != getattr(out, n)]
                raise Mismatch("outputs of the step", wrong)
        if owner == 0:
            golden = self.req.qp[qp]
            if not (decoder.same("ctx", words, golden) and decoder.same("path", words, golden.path)):
                found = decoder.differences("ctx", words, golden) + decoder.differences("path", words, golden.path)
                raise Mismatch("state after the step", [(d.path, d.hardware, d.golden) for d in found])
            self._keep_row(qp, clock)
        elif not decoder.same("ctx", words, self.rsp.qp[qp]):
            raise Mismatch("state after the step", [(d.path, d.hardware, d.golden) for d in decoder.differences("ctx", words, self.rsp.qp[qp])])

    # --- configuration and errors ---------------------------------------------------------------------------------------------------------
    def _asked(self, owner: int, qp: int, op: int, data: int) -> None:
        if op == Command.MODIFY and data & 7 == QpState.ERROR:
            self.host_error.add((owner, qp))
        elif op == Command.MODIFY:
            self.host_error.discard((owner, qp))

    def _req_control(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        self._asked(0, qp, b["op"], b["data"])
        return self.req.control(b["op"], qp, b["index"], b["data"], now)

    def _rsp_control(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        self._asked(1, qp, b["op"], b["data"])
        data = b["data"] & 7 if b["op"] == Command.MODIFY else b["data"]
        out = self.rsp.control(qp, now, b["op"], b["index"], data)
        if b["op"] == Command.SET_GLOBAL and out.status == 0:
            self.wire.configure(self.rsp.glob)
        return out

    def _port(self, model: Any, owner: int, clock: int, out: Any) -> Any:
        for plane in range(self.p.planes):
            self.wire.link(plane, bool(self.req.up & self.rsp.up & out.up & 1 << plane), clock)
        return out

    def _req_error(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        if self.req.qp[qp].fault is None and (0, qp) not in self.host_error and self.rsp.qp[qp].state != QpState.ERROR:
            raise Mismatch("QP_ERROR that nobody asked for: no step of this owner, not the host, and the responder is not in ERROR")
        self.host_error.discard((0, qp))
        return self.req.qp_error(qp, b["cause"], b["msg"], now)

    def _rsp_error(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        own = self.rsp.qp[qp].error_due or (1, qp) in self.host_error or b["cause"] == WcStatus.LOCAL_MEMORY
        if not own and self.req.qp[qp].state != QpState.ERROR:
            raise Mismatch("QP_ERROR that nobody asked for: no step of this owner, not the host, and the requestor is not in ERROR")
        self.host_error.discard((1, qp))
        return self.rsp.qp_error(qp, now, b["cause"])

    # --- requestor ------------------------------------------------------------------------------------------------------------------------
    def _send(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        req, wire = self.req, self.wire
        out = req.send(qp, now, b["room"], b["rtx"], b["psn"], b["a"])
        make, config = wire.addresser, req.qp[qp].config
        if make is None:
            raise Mismatch("SEND before SET_GLOBAL")
        entry = Expected(clock, f"PSN {out.psn:#x} of QP {qp}", lambda tick: make.data(config, out, wire.payload(out.laddr, out.plen), tick))
        wire.expect(out.plane, 0, entry, (qp, 0, out.psn, out.evi, out.send_tick))
        return out

    def _probe(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        out = self.req.probe(qp, b["slot"], now, b["room"])
        make, config = self.wire.addresser, self.req.qp[qp].config
        if make is None:
            raise Mismatch("PROBE before SET_GLOBAL")
        if out.send_tick:
            entry = Expected(clock, f"probe {out.id:#x} of QP {qp}", lambda tick: make.probe(qp, config, out, tick))
            self.wire.expect(out.plane, 0, entry, (qp, 1, 0, out.evi, out.send_tick))
        return out

    def _depart(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        psn = 0 if b["probe"] else b["psn"]
        self.wire.depart((qp, b["probe"], psn, b["evi"], b["send_tick"]), b["tick"], bool(b["dropped"] or b["read_error"]))
        return self.req.depart(qp, b["probe"], b["psn"], b["evi"], b["send_tick"], b["tick"], b["dropped"], b["read_error"], now)

    def _complete(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        out = self.req.complete(qp, now)
        self.completions[0].append({"qp": qp, "recv": 0, "status": out.status, "wr_id": out.wr_id, "length": out.length, "imm": 0})
        return out

    # --- frames of records ------------------------------------------------------------------------------------------------------------------
    def _frame(self, b: dict[str, Any], w: Words, kind: str, owner: int) -> Packet:
        """The delivered frame that the record shows, every field equal."""
        rx = b["rx"]
        member = member_of(rx["opcode"])
        if f"{kind}.{member}" not in self.decoders[owner].ext:
            raise Mismatch(f"opcode {rx['opcode']:#x} in a record of {kind}")
        ext = self.decoders[owner].ext[f"{kind}.{member}"](w)
        base, qps = self.p.qpn_base, self.p.qps

        def differences(packet: Packet) -> list[tuple[str, Any, Any]]:
            index = packet.dest_qp - base
            known = 0 <= index < qps
            config = self.rsp.config[index if known else 0]
            want = {"opcode": packet.opcode, "trimmed": packet.trimmed, "ce": int(packet.ecn == Ecn.CE), "ev": packet.ev, "a": packet.a,
                    "rtx": packet.rtx, "psn": packet.psn, "known": int(known)}  # fmt: skip
            if known:
                want |= {
                    "qp": index,
                    "addr_ok": address_ok(packet, self.rsp.glob, config, self.p.planes),
                    "pkey_ok": int(packet.pkey == config.pkey),
                }
            if member == "data":
                want["ts"] = packet.ts
                want["plen"] = len(packet.payload)
                if not packet.trimmed:
                    want["udp_len"] = packet.udp_len
            found = [(name, rx[name], value) for name, value in want.items() if rx[name] != value]
            if packet.opcode == rx["opcode"]:
                found += [(name, ext[name], getattr(packet, name)) for name in _EXT[member] if ext[name] != getattr(packet, name)]
                if member == "sack":
                    offset = packet.probe_id if packet.pr else packet.ack_psn_offset & 0xFFFF
                    if ext["ack_psn_offset"] & 0xFFFF != offset:
                        found.append(("ack_psn_offset", ext["ack_psn_offset"], offset))
            return found

        return self.wire.take(rx["plane"], owner, differences, kind.upper())

    def _feedback(self, b: dict[str, Any], w: Words, kind: str) -> Packet:
        return self._frame(b, w, kind, 0)

    # --- responder ------------------------------------------------------------------------------------------------------------------------
    def _receive(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        packet = self._frame(b, w, "receive", 1)
        rx = b["rx"]
        golden = Rx.of(packet, rx["plane"], rx["known"], rx["addr_ok"], rx["pkey_ok"])
        out = self.rsp.receive(qp, now, golden, b["no_resource"])
        self.no_resource += bool(b["no_resource"])
        if out.write:
            self.wire.write(out.addr, packet.payload)
        return out

    def _recv_complete(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        out = self.rsp.recv_complete(qp, now)
        if out.status == WcStatus.FLUSHED or (out.imm_valid and out.status == WcStatus.SUCCESS):
            self.completions[1].append({"qp": qp, "recv": 1, "status": out.status, "wr_id": out.wr_id, "length": out.length, "imm": out.imm})
        return out

    def _emit(self, qp: int, now: int, b: dict[str, Any], w: Words, clock: int) -> Any:
        rsp, evs = self.rsp, self.p.evs
        plane, room = b["plane"], b["room"]
        row = None
        if rsp.up:
            if plane >= self.p.planes:
                raise Mismatch(f"an answer leaves on plane {plane}, there are {self.p.planes}")
            values = [entry.value for entry in self.req.qp[qp].ev[plane * evs : plane * evs + evs]]
            row = RevRow(plane, b["good"], b["active"], b["denied"], values)
            self._check_row(qp, plane, clock, (b["good"], b["active"], b["denied"]))
        make, config = self.wire.addresser, rsp.config[qp]
        out: Any
        if "answer" not in b:
            out = rsp.emit_ack(qp, now, room, row)
            if make is not None and not out.dropped:
                self.wire.expect(out.plane, 2, Expected(clock, f"ACK of QP {qp}", lambda _: make.ack(config, out)))
            return out
        answer = Answer(**b["answer"])
        if answer.reason:
            out = rsp.emit_nack(qp, now, room, row, answer)
            if make is not None and not out.dropped:
                self.wire.expect(out.plane, 1, Expected(clock, f"NACK of QP {qp}", lambda _: make.nack(qp, config, out)))
        else:
            out = rsp.emit_sack(qp, now, room, row, answer)
            if make is not None and not out.dropped:
                self.wire.expect(out.plane, 1, Expected(clock, f"SACK of QP {qp}", lambda _: make.sack(qp, config, out)))
        return out

    # --- path rows that the responder reads -------------------------------------------------------------------------------------------------
    def _keep_row(self, qp: int, clock: int) -> None:
        ones, history = self._ones, self.rows[qp]
        row = tuple((r.good, r.active, ~(r.good | r.skip | r.bad) & ones) for r in self.req.qp[qp].path.planes)
        if row != history[-1][1]:
            history.append((clock, row))
            while len(history) > 1 and history[1][0] < clock - 2 * self.cross_clocks:
                history.popleft()
            if self.late:
                self.late = [item for item in self.late if not (item[0] == qp and row[item[1]] == item[3])]

    def _check_row(self, qp: int, plane: int, clock: int, read: tuple[int, int, int]) -> None:
        """What an EMIT read must have been the requestor's row of that plane within the last clocks, or become it within the next."""
        newer = clock + 1
        for start, row in reversed(self.rows[qp]):
            if newer < clock - self.cross_clocks:
                break
            if row[plane] == read:
                return
            newer = start
        self.late.append((qp, plane, clock, read))

    def check_late(self, clock: int) -> None:
        """Rows that were read and that the requestor has not shown in time."""
        for qp, plane, when, read in self.late:
            if clock > when + self.cross_clocks:
                names = ("good", "active", "denied")
                golden = self.rows[qp][-1][1][plane]
                raise Mismatch(f"the answer of clock {when} on QP {qp}, plane {plane} read a path row that the requestor never had",
                               list(zip(names, read, golden)))  # fmt: skip

    # --- other --------------------------------------------------------------------------------------------------------------------------
    def completion(self, words: Iterable[int]) -> None:
        """The host read a completion: the next of its owner."""
        info, low, high, length, imm = words
        recv = info >> 30 & 1
        ours = {"qp": info & 0xFFFF, "recv": recv, "status": info >> 16 & 0xFF, "wr_id": low | high << 32, "length": length, "imm": imm}
        if not self.completions[recv]:
            raise Mismatch(f"the host reads a completion that no step made: {ours}")
        golden = self.completions[recv].popleft()
        # A receive completion may learn of a failed write of its data only after its step.
        if recv and ours["status"] == WcStatus.LOCAL_MEMORY and golden["status"] == WcStatus.SUCCESS:
            golden = golden | {"status": int(WcStatus.LOCAL_MEMORY)}
        if ours != golden:
            raise Mismatch("completion", [(name, ours[name], golden[name]) for name in ours if ours[name] != golden[name]])

    def drops(self) -> dict[Drop, int]:
        """Drop counters that the NIC must show: codec, both owners, and answers without a port."""
        return {cause: self.wire.drops[cause] + self.req.drops[cause] + self.rsp.drops[cause] for cause in Drop}

    def pending(self, clock: int, tick: int) -> list[tuple[int, int, int, int]]:
        """Background steps that are due: (owner, QP, kind, which instance of it)."""
        found = []
        for qp in range(self.p.qps):
            if self.req.qp[qp].state:
                found += [(0, qp, int(due.kind), due.arg) for due in self.req.pending(qp, tick)]
            if self.rsp.qp[qp].state:
                found += [(1, qp, int(kind), 0) for kind in self.rsp.pending(qp, tick)]
        return found


__all__ = ["DATA_OPCODES", "Opcode", "Side", "StepError", "packet_differences", "sizes_of"]
