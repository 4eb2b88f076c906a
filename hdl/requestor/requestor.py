"""The requestor: owner of messages, send window, EVs, credit, timers and bytes in flight (docs/architecture.md, 'Requestor steps').

One sequencer over contexts in memories. Every state of it belongs to one module: sequencer.py (arbitration), commands.py, send.py, feedback.py,
background.py (retire, judge), complete.py (acknowledge, completions, errors), timers.py (walk over the QPs), fetch.py.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import Layouts
from hdl.params import Params
from hdl.requestor import background, commands, complete, feedback, fetch, send, sequencer, timers
from hdl.requestor.core import Core
from hdl.trace import TraceLayouts


def peer_error_layout(params: Params) -> data.StructLayout:
    """An error request between the owners."""
    return data.StructLayout({"qp": params.qp_bits})


def path_view_layout(params: Params) -> data.ArrayLayout:
    """What the responder sees of a path row, per plane."""
    return data.ArrayLayout(data.StructLayout({"active": params.evs, "good": params.evs, "denied": params.evs}), params.planes)


class Requestor(wiring.Component):
    """Requestor side of all QPs of a NIC.

    Streams: ``cmd`` (host commands of this owner, known operation, QP in range) and ``status`` (one answer each, in order); ``rx`` (SACK, NACK,
    ACK), ``depart`` (one per descriptor of ``tx``), ``tx`` (data and probes), ``completion``; ``peer_error_in`` / ``peer_error_out``.
    Levels: ``tick`` (128 ns), ``up`` (link per port), ``room`` (planes that can take a frame), ``port_up`` (link and administrative state as the
    steps see it). ``drop``: one clock per counted cause. ``path_qp`` / ``path_row`` and ``path_ev_index`` / ``path_ev``: second read ports for the
    responder, answered one clock later. ``trace_*`` (only with ``params.trace``): one commit record per step, without back-pressure.

    Rates: a step takes 5 to 30 clocks; nothing is lost when a stream stalls, a step starts only when its output registers are free.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        self.layouts = layouts = Layouts(params)
        ports: dict[str, object] = {
            "cmd": In(stream.Signature(layouts.cmd)), "status": Out(stream.Signature(layouts.cmd_status)),
            "rx": In(stream.Signature(layouts.rx)), "depart": In(stream.Signature(layouts.depart)),
            "tx": Out(stream.Signature(layouts.tx)), "completion": Out(stream.Signature(layouts.completion)),
            "peer_error_in": In(stream.Signature(peer_error_layout(params))), "peer_error_out": Out(stream.Signature(peer_error_layout(params))),
            "tick": In(32), "up": In(params.planes), "room": In(params.planes), "port_up": Out(params.planes),
            "path_qp": In(params.qp_bits), "path_ev_index": In(params.evi_bits),
            "path_row": Out(path_view_layout(params)), "path_ev": Out(32),
            "drop": Out(data.StructLayout({"valid": 1, "cause": 8})),
        }  # fmt: skip
        if params.trace:
            ports |= {"trace_valid": Out(1), "trace_data": Out(TraceLayouts(params).req.size)}
        super().__init__(ports)  # type: ignore[arg-type]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        core = Core(m, self.params, self)
        sequencer.add_around(core)
        with m.FSM(name="step"):
            for part in (sequencer, commands, feedback, background, complete, send, timers, fetch):
                part.add(core)
        self._responder_view(m, core)
        m.d.comb += self.port_up.eq(core.port_up)
        m.d.sync += [self.drop.valid.eq(core.drop_valid), self.drop.cause.eq(core.drop_cause)]
        if self.params.trace:
            self._trace(m, core)
        return m

    def _responder_view(self, m: Module, core: Core) -> None:
        p = self.params
        path, value = core.path_ram.second, core.value_ram.second
        assert path is not None and value is not None
        m.d.comb += [path.en.eq(1), path.addr.eq(self.path_qp), value.en.eq(1), value.addr.eq(Cat(self.path_ev_index, self.path_qp)),
                     self.path_ev.eq(value.data)]  # fmt: skip
        for n in range(p.planes):
            row, out = path.data.planes[n], self.path_row[n]
            m.d.comb += [out.active.eq(row.active), out.good.eq(row.good), out.denied.eq(~(row.good | row.skip | row.bad))]

    def _trace(self, m: Module, core: Core) -> None:
        """The record of a step shows the working registers of the clock after its commit."""
        layout = TraceLayouts(self.params).req
        record = Signal(layout)
        body = Signal(layout["body"].shape)
        valid = Signal()
        kind, seq, tick, qp = Signal(8), Signal(32), Signal(32), Signal(8)
        m.d.sync += valid.eq(core.commit_now)
        with m.If(core.commit_now):
            m.d.sync += [Value.cast(body).eq(core.body), kind.eq(core.commit_kind), seq.eq(core.seq), tick.eq(core.now), qp.eq(core.qp),
                         core.seq.eq(core.seq + 1)]  # fmt: skip
        m.d.comb += [
            record.kind.eq(kind), record.seq.eq(seq), record.tick.eq(tick), record.qp.eq(qp), Value.cast(record.body).eq(body),
            Value.cast(record.ctx).eq(core.ctx), Value.cast(record.path).eq(core.path),
            self.trace_valid.eq(valid), self.trace_data.eq(record),
        ]  # fmt: skip


