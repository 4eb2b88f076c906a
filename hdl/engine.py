"""The engine: protocol logic alone. Descriptors in, descriptors out; no payload, no bytes of frames."""

from __future__ import annotations

from amaranth.hdl import Module, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.dispatch import Dispatcher, config_write_layout
from hdl.layouts import GLOBAL_CONFIG, Layouts
from hdl.params import Params
from hdl.requestor.requestor import Requestor
from hdl.responder.responder import Responder
from hdl.trace import TraceLayouts

DROP = data.StructLayout({"valid": 1, "cause": 8})  # pulse: one more of this spec.Drop


class Engine(wiring.Component):
    """Requestor and responder of one NIC behind one command stream.

    ========================  ==================================================================================================
    cmd, cmd_status           host commands and their answers, in order
    rx_req, rx_rsp            SACK, NACK, ACK; data and probes (frames that passed the checks of the ingress)
    verdict                   one for each data frame of rx_rsp, in order
    tx_req, depart            data and probes; one report for each
    tx_rsp                    SACK, NACK, ACK
    completion_req, _rsp      work completions; receive completions
    wr_error                  a payload write of this QP failed
    tick                      128 ns, 32 bits
    link_up, port_up          links of the ports; those that are administratively up as well
    room_req, room_rsp        planes that can take a frame of the requestor, of the responder
    cfg_wr, global_config     configuration for ingress and egress
    drop_req, drop_rsp        pulses: one more of that cause
    trace_req_*, trace_rsp_*  with params.trace: commit records (hdl.trace)
    ========================  ==================================================================================================
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        lay = Layouts(params)
        members = {
            "cmd": In(stream.Signature(lay.cmd)), "cmd_status": Out(stream.Signature(lay.cmd_status)),
            "rx_req": In(stream.Signature(lay.rx)), "rx_rsp": In(stream.Signature(lay.rx)), "verdict": Out(stream.Signature(lay.verdict)),
            "depart": In(stream.Signature(lay.depart)), "tx_req": Out(stream.Signature(lay.tx)), "tx_rsp": Out(stream.Signature(lay.tx)),
            "completion_req": Out(stream.Signature(lay.completion)), "completion_rsp": Out(stream.Signature(lay.completion)),
            "wr_error": In(stream.Signature(data.StructLayout({"qp": params.qp_bits}))),
            "tick": In(32), "link_up": In(params.planes), "port_up": Out(params.planes), "room_req": In(params.planes), "room_rsp": In(params.planes),
            "cfg_wr": Out(config_write_layout(params)), "global_config": Out(GLOBAL_CONFIG), "drop_req": Out(DROP), "drop_rsp": Out(DROP),
        }  # fmt: skip
        if params.trace:
            trace = TraceLayouts(params)
            members |= {"trace_req_valid": Out(1), "trace_req_data": Out(trace.req.size), "trace_rsp_valid": Out(1), "trace_rsp_data": Out(trace.rsp.size)}
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dispatcher = dispatcher = Dispatcher(self.params)
        m.submodules.requestor = req = Requestor(self.params)
        m.submodules.responder = rsp = Responder(self.params)
        for mine, inner in (
            (self.cmd, dispatcher.cmd), (self.cmd_status, dispatcher.cmd_status),
            (self.rx_req, req.rx), (self.depart, req.depart), (self.tx_req, req.tx), (self.completion_req, req.completion),
            (self.rx_rsp, rsp.rx), (self.verdict, rsp.verdict), (self.tx_rsp, rsp.tx), (self.completion_rsp, rsp.completion), (self.wr_error, rsp.wr_error),
        ):  # fmt: skip
            connect(m, flipped(mine), inner)
        connect(m, dispatcher.req_cmd, req.cmd)
        connect(m, req.status, dispatcher.req_status)
        connect(m, dispatcher.rsp_cmd, rsp.cmd)
        connect(m, rsp.status, dispatcher.rsp_status)
        connect(m, req.peer_error_out, rsp.peer_error_in)
        connect(m, rsp.peer_error_out, req.peer_error_in)
        m.d.comb += [
            req.tick.eq(self.tick), rsp.tick.eq(self.tick),
            req.up.eq(self.link_up), rsp.up.eq(req.port_up), self.port_up.eq(req.port_up),
            req.room.eq(self.room_req), rsp.room.eq(self.room_rsp),
            req.path_qp.eq(rsp.path_qp), req.path_ev_index.eq(rsp.path_ev_index),
            Value.cast(rsp.path_row).eq(Value.cast(req.path_row)), rsp.path_ev.eq(req.path_ev),
            self.cfg_wr.eq(dispatcher.cfg_wr), self.global_config.eq(dispatcher.global_config),
            Value.cast(self.drop_req).eq(Value.cast(req.drop)), Value.cast(self.drop_rsp).eq(Value.cast(rsp.drop)),
        ]  # fmt: skip
        if self.params.trace:
            m.d.comb += [
                self.trace_req_valid.eq(req.trace_valid), self.trace_req_data.eq(req.trace_data),
                self.trace_rsp_valid.eq(rsp.trace_valid), self.trace_rsp_data.eq(rsp.trace_data),
            ]  # fmt: skip
        return m
