"""Host commands to their owners, one at a time, one status each."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import GLOBAL_CONFIG, QP_CONFIG, Layouts
from hdl.params import Params
from model import spec
from model.spec import Command, PostStatus

NAMES_QP = (Command.SET_QP, Command.SET_EV, Command.EV_STATE, Command.MODIFY, Command.POST, Command.POST_RECV)
INDEXES = ((Command.SET_EV, "total_evs"), (Command.EV_STATE, "total_evs"), (Command.SET_REGION, "regions"), (Command.PORT, "planes"))
FOR_REQUESTOR = (Command.SET_GLOBAL, Command.SET_QP, Command.SET_EV, Command.EV_STATE, Command.MODIFY, Command.POST, Command.PORT)
FOR_RESPONDER = (Command.SET_GLOBAL, Command.SET_QP, Command.SET_REGION, Command.MODIFY, Command.POST_RECV, Command.PORT)


def config_write_layout(params: Params) -> data.StructLayout:
    """A QP's configuration for the blocks that keep a copy: ``valid`` for one clock."""
    return data.StructLayout({"valid": 1, "qp": params.qp_bits, "data": QP_CONFIG})


class Dispatcher(wiring.Component):
    """Takes host commands one at a time to their owners and answers each with one status (docs/architecture.md, "QPs and commands").

    Refused here, without a step: unknown op (BAD_OPCODE), QP, EV, region or port index out of range (BAD_QP), QP parameters that the hardware could not
    live with (BAD_VALUE). The others go to the requestor, then to the responder, as their op says; the status is that of the first
    that was asked. ``cfg_wr`` and ``global_config`` change before the status of the SET_QP or SET_GLOBAL that succeeded is given.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        lay = Layouts(params)
        super().__init__({
            "cmd": In(stream.Signature(lay.cmd)), "cmd_status": Out(stream.Signature(lay.cmd_status)),
            "req_cmd": Out(stream.Signature(lay.cmd)), "req_status": In(stream.Signature(lay.cmd_status)),
            "rsp_cmd": Out(stream.Signature(lay.cmd)), "rsp_status": In(stream.Signature(lay.cmd_status)),
            "cfg_wr": Out(config_write_layout(params)), "global_config": Out(GLOBAL_CONFIG),
        })  # fmt: skip

    def _bad_value(self) -> Value:
        """A SET_QP with a parameter outside what this instance can do."""
        p, word = self.params, self.cmd.payload
        config = data.View(QP_CONFIG, word.data[: QP_CONFIG.size])
        largest = spec.MTUS.index(p.mtu)
        return (word.op == Command.SET_QP) & (
            (config.mtu > largest)
            | (config.rsp_mpr == 0) | (config.rsp_mpr > p.window) | (config.rsp_mpr[:7] != 0)  # multiples of spec.MPR_UNIT
            | (config.timer_exp > spec.MAX_TIMER_EXP) | (config.exp_cnt > spec.EXP_FOREVER) | (config.lfsr_seed == 0)
        )  # fmt: skip

    def _no_such(self, m: Module) -> Value:
        """The QP, EV, region or port that the command names does not exist."""
        p, word = self.params, self.cmd.payload
        missing = Signal()
        with m.If(Value.cast(word.op).matches(*NAMES_QP) & (word.qp >= p.qps)):
            m.d.comb += missing.eq(1)
        for op, count in INDEXES:
            with m.If((word.op == op) & (word.index >= getattr(p, count))):
                m.d.comb += missing.eq(1)
        return missing

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = self.cmd.payload
        bad_value, no_such = Signal(), Signal()
        status, status_valid = Signal(8), Signal()
        m.d.sync += [bad_value.eq(self._bad_value()), no_such.eq(self._no_such(m))]
        op = Value.cast(word.op)
        first = Signal()  # the responder is the only one asked
        m.d.comb += [
            Value.cast(self.req_cmd.payload).eq(Value.cast(word)), Value.cast(self.rsp_cmd.payload).eq(Value.cast(word)),
            self.cmd_status.valid.eq(status_valid), self.cmd_status.payload.status.eq(status),
        ]  # fmt: skip
        m.d.sync += self.cfg_wr.valid.eq(0)
        with m.If(status_valid & self.cmd_status.ready):
            m.d.sync += status_valid.eq(0)

        def refuse(why: PostStatus) -> None:
            m.d.sync += status.eq(why)
            m.next = "ANSWER"

        with m.FSM(name="dispatch"):
            with m.State("IDLE"), m.If(self.cmd.valid & ~status_valid):
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += first.eq(0)
                with m.If(word.op > max(Command)):
                    refuse(PostStatus.BAD_OPCODE)
                with m.Elif(no_such):
                    refuse(PostStatus.BAD_QP)
                with m.Elif(bad_value):
                    refuse(PostStatus.BAD_VALUE)
                with m.Elif(op.matches(*FOR_REQUESTOR)):
                    m.next = "REQUESTOR"
                with m.Elif(op.matches(*FOR_RESPONDER)):
                    m.d.sync += first.eq(1)
                    m.next = "RESPONDER"
                with m.Else():
                    refuse(PostStatus.OK)  # NOP
            for name, cmd, answer in (("REQUESTOR", self.req_cmd, self.req_status), ("RESPONDER", self.rsp_cmd, self.rsp_status)):
                with m.State(name):
                    m.d.comb += cmd.valid.eq(1)
                    with m.If(cmd.ready):
                        m.next = f"{name}_STATUS"
                with m.State(f"{name}_STATUS"):
                    m.d.comb += answer.ready.eq(1)
                    with m.If(answer.valid):
                        if name == "REQUESTOR":
                            m.d.sync += status.eq(answer.payload.status)
                            m.next = "CONFIGURE"
                            with m.If(op.matches(*FOR_RESPONDER)):
                                m.next = "RESPONDER"
                        else:
                            with m.If(first):
                                m.d.sync += status.eq(answer.payload.status)
                            m.next = "CONFIGURE"
            with m.State("CONFIGURE"):
                m.next = "ANSWER"
                with m.If((word.op == Command.SET_QP) & (status == PostStatus.OK)):
                    m.d.sync += [self.cfg_wr.valid.eq(1), self.cfg_wr.qp.eq(word.qp), Value.cast(self.cfg_wr.data).eq(word.data)]
                with m.If((word.op == Command.SET_GLOBAL) & (status == PostStatus.OK)):
                    m.d.sync += Value.cast(self.global_config).eq(word.data)
            with m.State("ANSWER"):
                m.d.comb += self.cmd.ready.eq(1)
                m.d.sync += status_valid.eq(1)
                m.next = "IDLE"
        return m
