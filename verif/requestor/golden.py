"""Block-level lockstep: every commit record of the requestor is applied to the golden model and compared, outputs and state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hdl.params import Params
from model.config import Sizes, StepError, WorkRequest
from model.requestor import CTX_FIELDS, FeedbackFields, Requestor
from model.spec import Command, Kind


class Mismatch(AssertionError):
    """The hardware's record and the golden model differ."""


class Golden:
    """The golden requestor of an instance, driven by records (dicts of :meth:`verif.requestor.bench.Bench`)."""

    def __init__(self, params: Params, seed: int = 0) -> None:
        names = ("qps", "planes", "evs", "active_evs", "window", "msg_slots", "rq_entries", "max_wimm", "regions", "mtu", "qpn_base")
        self.model = Requestor(Sizes(**{name: getattr(params, name) for name in names}))
        self.model.up = 0  # ports come up by a PORT step
        self.seed = seed
        self.count = 0

    def take(self, record: dict[str, Any]) -> None:
        """Applies one record; :class:`Mismatch` when the step is illegal or differs."""
        kind, qp = record["kind"], record["qp"]
        try:
            got = self._step(kind, qp, record["body"], record["tick"])
        except StepError as error:
            self._fail(record, f"illegal step: {error}")
        if record["seq"] != self.count:
            self._fail(record, f"sequence number {self.count} expected")
        self.count += 1
        body = record["body"]
        for name, value in asdict(got).items():
            if body[name] != value:
                self._fail(record, f"{name}: hardware {body[name]:#x}, model {value:#x}")
        self._compare(record, qp)

    def _step(self, kind: Kind, qp: int, b: dict[str, Any], now: int) -> Any:
        model = self.model
        if kind == Kind.CONTROL:
            return model.control(b["op"], qp, b["index"], b["data"] if b["op"] != Command.MODIFY else b["data"] & 7, now)
        if kind == Kind.PORT:
            return model.port(b["up"], now)
        if kind == Kind.QP_ERROR:
            return model.qp_error(qp, b["cause"], b["msg"], now)
        if kind == Kind.POST:
            return model.post(qp, WorkRequest.unpack(b["wr"]), now)
        if kind == Kind.SEND:
            return model.send(qp, now, b["room"], b["rtx"], b["psn"], b["a"])
        if kind == Kind.DEPART:
            names = ("probe", "psn", "evi", "send_tick", "tick", "dropped", "read_error")
            return model.depart(qp, *(b[name] for name in names), now)
        if kind in (Kind.SACK, Kind.NACK, Kind.ACK):
            rx = b["rx"]
            checks = {name: rx[name] for name in ("known", "addr_ok", "pkey_ok")}
            ext = rx["ext"][kind.name.lower()]
            fields = FeedbackFields(psn=rx["psn"], **{name: v for name, v in ext.items() if name in FeedbackFields.__slots__})
            if kind == Kind.SACK:
                fields.probe_id = ext["ack_psn_offset"] & 0xFFFF
            return getattr(model, kind.name.lower())(qp, fields, now, **checks)
        if kind in (Kind.RETIRE, Kind.JUDGE):
            return getattr(model, kind.name.lower())(qp, b["psn"], now)
        if kind == Kind.TIMEOUT:
            return model.timeout(qp, now)
        if kind == Kind.PROBE:
            return model.probe(qp, b["slot"], now, b["room"])
        if kind == Kind.EV_AGE:
            return model.ev_age(qp, b["evi"], now)
        if kind == Kind.COMPLETE:
            return model.complete(qp, now)
        raise AssertionError(f"{kind!r} is no step of the requestor")

    def _compare(self, record: dict[str, Any], qp: int) -> None:
        q = self.model.qp[qp]
        for name in CTX_FIELDS:
            value = getattr(q, name)
            if not isinstance(value, int):
                value = asdict(value)
            if record["ctx"][name] != value:
                self._fail(record, f"ctx.{name} after the step: hardware {record['ctx'][name]}, model {value}")
        path = asdict(q.path)
        for name, value in record["path"].items():
            if path[name] != value:
                self._fail(record, f"path.{name} after the step: hardware {value}, model {path[name]}")

    def _fail(self, record: dict[str, Any], why: str) -> None:
        shown = {k: v for k, v in record["body"].items() if k not in ("wr", "data")}
        raise Mismatch(f"seed {self.seed}, record {record['seq']} ({record['kind'].name}, QP {record['qp']}, tick {record['tick']}, "
                       f"clock {record['clock']}): {why}\n  body {shown}\n  ctx {record['ctx']}\n  path {record['path']}")  # fmt: skip
