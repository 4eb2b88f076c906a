"""Holds commit records of the responder against the golden model: same step, same outputs, same state; and says what the streams must have shown."""

from __future__ import annotations

from typing import Any

from hdl.layouts import Layouts
from hdl.params import Params
from model.config import GlobalConfig, Sizes
from model.responder import Responder
from model.rsp_state import Answer, RevRow, Rx
from model.spec import DATA_OPCODES, Command, Drop, Kind, Opcode, WcStatus
from verif.responder.codec import decoder, encoder


def rx_of(rx: dict[str, Any]) -> Rx:
    probe = rx["opcode"] == Opcode.PROBE
    ext = rx["ext"]["probe" if probe else "data"]
    keep = ("probe_id", "tx_timestamp") if probe else ("rqmsn", "msn", "tx_timestamp", "va", "rkey", "dmalen", "imm")
    return Rx(**{name: value for name, value in rx.items() if name not in ("qp", "ext")}, **{name: ext[name] for name in keep})


class Golden:
    """The golden responder beside the RTL's. :meth:`step` raises AssertionError at the first difference, naming the record and both sides."""

    def __init__(self, params: Params) -> None:
        p = self.p = params
        self.sizes = Sizes(p.qps, p.planes, p.evs, p.active_evs, p.window, p.msg_slots, p.rq_entries, p.max_wimm, p.regions, p.mtu, p.qpn_base)
        self.model = Responder(self.sizes)
        self.model.glob = GlobalConfig(base_rtt=0, sack_threshold=0, sack_flush_time=0)  # what the hardware starts with
        tx = Layouts(p).tx
        self.pack, self.show = encoder(tx), decoder(tx)
        self.seq = 0
        self.verdicts: list[dict[str, int]] = []
        self.completions: list[dict[str, int]] = []
        self.frames: list[dict[str, Any]] = []
        self.peers: list[int] = []
        self.asked: set[int] = set()  # QPs whose QP_ERROR the host or the requestor asked for

    def drops(self) -> list[Drop]:
        return [cause for cause in Drop for _ in range(self.model.drops[cause])]

    def pending(self, tick: int) -> list[tuple[int, Any]]:
        return [(qp, steps) for qp in range(self.p.qps) if (steps := self.model.pending(qp, tick))]

    def step(self, record: Any, bench: Any) -> None:
        kind, qp = Kind(record["kind"]), record["qp"]
        body = record["body"][kind.name.lower()]
        where = f"seed {bench.seed}, record {record['seq']} ({kind.name}, QP {qp}, tick {record['tick']})"
        assert record["seq"] == self.seq, f"{where}: expected record {self.seq}"
        self.seq += 1
        out = self._apply(kind, qp, record["tick"], body, bench)
        for name, value in out.items():
            assert body[name] == value, f"{where}: {name} = {body[name]!r}, golden {value!r}\n{body}"
        golden = self.model.qp[qp]
        ctx = record["ctx"]
        wrong = {name: (value, getattr(golden, name)) for name, value in ctx.items() if value != getattr(golden, name)}
        assert not wrong, f"{where}: context (RTL, golden) {wrong}"

    def _apply(self, kind: Kind, qp: int, now: int, body: dict[str, Any], bench: Any) -> dict[str, Any]:
        g = self.model
        if kind == Kind.CONTROL:
            out = g.control(qp, now, body["op"], body["index"], body["data"])
            if body["op"] == Command.MODIFY and g.qp[qp].error_due:
                self.asked.add(qp)
            return vars_of(out)
        if kind == Kind.PORT:
            return vars_of(g.port(now, body["up"]))
        if kind == Kind.POST_RECV:
            return vars_of(g.post_recv(qp, now, body["wr_id"]))
        if kind == Kind.QP_ERROR:
            own = (g.qp[qp].error_due and qp not in self.asked) or body["cause"] == WcStatus.LOCAL_MEMORY
            assert own or qp in self.asked or qp in bench.asked_peer, "QP_ERROR that nobody asked for"
            self.asked.discard(qp)
            if own:
                self.peers.append(qp)
            return vars_of(g.qp_error(qp, now, body["cause"]))
        if kind == Kind.RECEIVE:
            rx = body["rx"]
            out = g.receive(qp, now, rx_of(rx), body["no_resource"])
            if rx["opcode"] in DATA_OPCODES:
                self.verdicts.append({"write": out.write, "addr": out.addr, "plen": rx["plen"], "qp": qp})
            return vars_of(out)
        if kind == Kind.RECV_COMPLETE:
            done = g.recv_complete(qp, now)
            if done.status == WcStatus.FLUSHED or (done.imm_valid and done.status == WcStatus.SUCCESS):
                self.completions.append({"qp": qp, "recv": 1, "status": done.status, "wr_id": done.wr_id, "length": done.length, "imm": done.imm})
            return vars_of(done)
        if kind in (Kind.ADVANCE, Kind.FLUSH):
            return vars_of(g.advance(qp, now) if kind == Kind.ADVANCE else g.flush(qp, now))
        return self._emit(kind, qp, now, body, bench)

    def _emit(self, kind: Kind, qp: int, now: int, body: dict[str, Any], bench: Any) -> dict[str, Any]:
        g, p = self.model, self.p
        values = [bench.ev(qp, body["plane"] * p.evs + i) for i in range(p.evs)]
        row = RevRow(body["plane"], body["good"], body["active"], body["denied"], values)
        before = g.qp[qp]
        cause = before.ack_plane if kind == Kind.EMIT_ACK else body["answer"]["plane"]
        if g.exit_plane(cause) is None:
            row = None
        if kind == Kind.EMIT_ACK:
            out = vars_of(g.emit_ack(qp, now, body["room"], row))
            opcode, psn, stamp = Opcode.ACK, body["psn"], 1
            ext = {"ack": {"syndrome": body["syndrome"], "aeth_msn": body["aeth_msn"]}}
        else:
            answer = Answer(**body["answer"])
            common = {"entropy": answer.ev, "echo_timestamp": answer.tick, "spdcid": g.config[qp].dest_qpn & 0xFFFF, "dpdcid": p.qpn_base + qp & 0xFFFF}
            stamp = 0
            if kind == Kind.EMIT_NACK:
                out = vars_of(g.emit_nack(qp, now, body["room"], row, answer))
                opcode, psn = Opcode.NACK, answer.psn
                ext = {"nack": common | {"nack_reason": answer.reason, "nack_psn": psn, "cc_type": 2}}
            else:
                out = vars_of(g.emit_sack(qp, now, body["room"], row, answer))
                opcode, psn = Opcode.SACK, body["cack_psn"]
                offset = body["ack_psn_offset"] - (body["ack_psn_offset"] >> 15 << 16)
                ext = {"sack": common | {"mflag": answer.mflag, "pr": answer.pr, "ack_psn_offset": offset,
                       **{n: body[n] for n in ("cack_psn", "mpr", "sack_offset", "sack_bitmap", "ooo_count", "rcvd_bytes")}}}  # fmt: skip
            out["answer"] = body["answer"]
        if not body["dropped"]:
            frame = {"qp": qp, "plane": body["plane"], "ev": body["ev"], "evi": body["plane"] * p.evs + body["ev_in_plane"], "opcode": opcode,
                     "psn": psn, "wr_stamp": stamp, "ext": ext}  # fmt: skip
            self.frames.append(self.show(self.pack(frame)))
        return out


def vars_of(out: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass."""
    return {name: getattr(out, name) for name in out.__dataclass_fields__}
