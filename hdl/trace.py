"""Layouts of commit records: what a step read, chose, put out, and the state it left. Compared by ``verif/lockstep.py``.

Every record: kind (model.spec.Kind), QP index, sequence number of the owner (from 0, every step one more), tick of the step, the body of
its kind, and the QP's state after the step.
"""

from __future__ import annotations

from functools import cached_property

from amaranth.hdl import signed
from amaranth.lib import data

from hdl.layouts import CMD_DATA_BITS, Layouts
from hdl.params import Params


class TraceLayouts:
    """Layouts of the records of one instance."""

    def __init__(self, params: Params) -> None:
        self.p = params
        self.l = Layouts(params)

    @cached_property
    def req_bodies(self) -> dict[str, data.StructLayout]:
        """Body of each kind of requestor record; names are those of ``spec.Kind``, lower case."""
        p, evi = self.p, self.p.evi_bits
        return {name: data.StructLayout(fields) for name, fields in {  # type: ignore[arg-type]
            "control": {"op": 8, "index": 16, "status": 8, "data": CMD_DATA_BITS},
            "port": {"up": p.planes},
            "qp_error": {"cause": 8, "msg": 16},
            "post": {"status": 8, "slot": 16, "wr": CMD_DATA_BITS},
            "send": {"room": p.planes, "rtx": 1, "psn": 24, "plane": p.plane_bits, "evi": evi, "ev": 32, "fallback": 1, "opcode": 8,
                     "a": 1, "laddr": 64, "plen": 13, "rqmsn": 16, "msn": 16, "va": 64, "rkey": 32, "dmalen": 32, "imm": 32,
                     "send_tick": 16, "credit": 16},
            "depart": {"probe": 1, "psn": 24, "evi": evi, "send_tick": 16, "tick": 16, "dropped": 1, "read_error": 1, "applied": 1},
            "sack": {"rx": self.l.rx, "drop": 8, "newly": 32, "evi": evi, "ev_found": 1, "matched": 1},
            "nack": {"rx": self.l.rx, "drop": 8, "evi": evi, "credit": 16},
            "ack": {"rx": self.l.rx, "drop": 8},
            "retire": {"psn": 24, "was_lost": 1, "evi": evi, "credit": 16},
            "judge": {"psn": 24, "evi": evi, "proved": 1, "credit": 16},
            "timeout": {"head_lost": 1, "evi": evi, "credit": 16},
            "probe": {"room": p.planes, "slot": 1, "id": 16, "plane": p.plane_bits, "evi": evi, "ev": 32, "send_tick": 16},
            "ev_age": {"evi": evi},
            "complete": {"msg": 16, "status": 8, "wr_id": 64, "length": 32},
        }.items()}  # fmt: skip

    @cached_property
    def rsp_bodies(self) -> dict[str, data.StructLayout]:
        """Body of each kind of responder record."""
        p = self.p
        answer = {"room": p.planes, "plane": p.plane_bits, "ev_in_plane": p.ev_bits, "ev": 32, "good": p.evs, "active": p.evs, "denied": p.evs}
        return {name: data.StructLayout(fields) for name, fields in {  # type: ignore[arg-type]
            "control": {"op": 8, "index": 16, "status": 8, "data": CMD_DATA_BITS},
            "port": {"up": p.planes},
            "qp_error": {"cause": 8},
            "receive": {"rx": self.l.rx, "drop": 8, "write": 1, "addr": 64, "no_resource": 8},
            "advance": {"cack_psn": 24},
            "flush": {},
            "emit_ack": {"dropped": 1, **answer, "syndrome": 8, "psn": 24, "aeth_msn": 24},
            "emit_nack": {"dropped": 1, **answer, "answer": self.l.answer},
            "emit_sack": {"dropped": 1, **answer, "answer": self.l.answer, "cack_psn": 24, "sack_offset": signed(16), "sack_bitmap": 64,
                          "ack_psn_offset": 16, "ooo_count": 15, "rcvd_bytes": 24, "mpr": 8},
            "recv_complete": {"psn": 24, "imm_valid": 1, "status": 8, "wr_id": 64, "length": 32, "imm": 32},
            "post_recv": {"status": 8, "wr_id": 64},
        }.items()}  # fmt: skip

    def _record(self, bodies: dict[str, data.StructLayout], **state: data.Layout) -> data.StructLayout:
        body = data.UnionLayout(bodies)  # type: ignore[arg-type]
        return data.StructLayout({"kind": 8, "qp": 8, "seq": 32, "tick": 32, "body": body, **state})

    @cached_property
    def req(self) -> data.StructLayout:
        """A requestor record with the QP's context and path row after the step."""
        return self._record(self.req_bodies, ctx=self.l.req_ctx, path=self.l.path)

    @cached_property
    def rsp(self) -> data.StructLayout:
        """A responder record with the QP's context after the step."""
        return self._record(self.rsp_bodies, ctx=self.l.rsp_ctx)
