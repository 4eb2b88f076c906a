"""Scripted flows through the requestor, each step also held against the golden model: sending, windows, acknowledgement, completions."""

from __future__ import annotations

from typing import Any

import pytest

from hdl import layouts as fixed
from hdl.params import Params, preset
from model import spec
from model.spec import Command, Drop, Kind, Opcode, PostStatus, QpState, WcStatus
from verif.requestor.bench import OK, Bench, packet_size, simulate
from verif.requestor.golden import Golden

TINY = preset("tiny")
BOTH = preset("tiny", active_evs=2)


def run(test: Any, params: Params = TINY, **options: Any) -> Bench:
    """Runs ``test`` in lockstep with the golden model."""
    golden = Golden(params)

    async def body(b: Bench) -> None:
        b.on_record = golden.take
        await test(b)

    return simulate(body, params, **options)


def at_rest(b: Bench, qp: int = 0) -> None:
    """Nothing in flight, no credit used, nothing queued (MRC-REQ-068, 096, 144)."""
    ctx, path = next((r["ctx"], r["path"]) for r in reversed(b.records) if r["qp"] == qp)
    assert (ctx["inflight"], ctx["unretired"], ctx["tx_pending"], ctx["timer_on"], ctx["probe_on"], ctx["hold"]) == (0, 0, 0, 0, 0, 0), ctx
    assert all(row["full"] == 0 for row in path["planes"]), path
    credit: dict[int, int] = {}
    for r in b.records:
        if r["qp"] == qp and "credit" in r["body"] and r["body"].get("drop", 0xFF) == 0xFF and r["body"].get("head_lost", 1):
            credit[r["body"]["evi"]] = r["body"]["credit"]
    assert not any(credit.values()), credit


async def answer(b: Bench, qp: int = 0) -> None:
    """Acknowledges everything that was sent so far, with SACK and ACK."""
    sent = {tx["psn"]: tx for tx in b.sent if tx["qp"] == qp and tx["opcode"] != Opcode.PROBE}
    last = list(sent.values())[-1]
    await b.run(lambda: not b.departs)
    b.sack(qp, last["psn"], cause=last, rcvd=sum(packet_size(tx) for tx in sent.values()))
    b.ack(qp, [psn for psn, tx in sent.items() if tx["opcode"] in spec.END_OPCODES][-1])
    await (b.rest() if b.trace_on else b.quiet(200))


@pytest.mark.parametrize("mtu", range(5))
def test_segments_across_the_psn_wrap(mtu: int) -> None:
    """Lengths around the MTU, odd addresses, PSNs from 0xFFFFFE: headers of every packet, then completions in order (MRC-REQ-058 to 065)."""
    size = 256 << mtu
    lengths = [1, size - 1, size, size + 1, 3 * size, 45]

    async def test(b: Bench) -> None:
        await b.connect(mtu=mtu, sq_psn=0xFFFFFE)
        packets = []
        for i, length in enumerate(lengths):
            imm = 0x8000_0001 + i if i % 2 else None
            assert await b.post(0, length, imm, raddr=0xFFFF_FFFF_0000_0003 + i, laddr=0x1005 + i, wr_id=100 + i) == OK
            count = -(-length // size)
            packets += [(i, length, imm, k, count) for k in range(count)]
        await b.run(lambda: len(b.sent) == len(packets))
        for n, (tx, (i, length, imm, k, count)) in enumerate(zip(b.sent, packets)):
            last = k == count - 1
            name = "ONLY" if count == 1 else "LAST" if last else "MIDDLE" if k else "FIRST"
            head = tx["ext"]["data"]
            assert tx["opcode"] == Opcode[f"WRITE_{name}{'_IMM' if last and imm is not None else ''}"]
            assert tx["psn"] == (0xFFFFFE + n) & 0xFFFFFF and tx["rtx"] == 0
            assert tx["plen"] == min(size, length - k * size)
            assert tx["laddr"] == 0x1005 + i + k * size and head["va"] == 0xFFFF_FFFF_0000_0003 + i + k * size
            assert (head["dmalen"], head["rkey"], head["msn"], head["rqmsn"]) == (length, 0x77, i, i // 2)
            assert head["imm"] == (imm if last and imm is not None else 0)
            assert tx["ev"] == b.ev_value(0, tx["evi"]) and tx["plane"] == tx["evi"] // 2
        assert b.sent[-1]["a"] == 1
        assert {tx["plane"] for tx in b.sent} == {0, 1}
        await answer(b)
        assert [(c["wr_id"], c["status"], c["length"]) for c in b.completions] == [(100 + i, 0, n) for i, n in enumerate(lengths)]
        at_rest(b)

    run(test)


def test_window_stall_and_reopen() -> None:
    """Without feedback exactly req_mpr packets leave, the last asks; a SACK's mpr and cack_psn open the window (MRC-REQ-072, 073, 089; R-01)."""
    async def test(b: Bench) -> None:
        await b.connect(req_mpr=20, sq_psn=0xFFFFF0, glob={"probe_time": 60000}, timer_exp=20, mtu=0)
        assert await b.post(0, 256 * 200) == OK
        await b.run(lambda: len(b.sent) == 20)
        await b.quiet(150)
        assert len(b.sent) == 20 and [tx["a"] for tx in b.sent] == [0] * 19 + [1]
        b.sack(0, b.sent[4]["psn"], cause=b.sent[4], rcvd=5 * 344)  # mpr 0: the configured value
        await b.run(lambda: len(b.sent) == 25)
        await b.quiet(150)
        assert len(b.sent) == 25
        b.sack(0, b.sent[4]["psn"], cause=b.sent[4], rcvd=5 * 344, mpr=1)  # 128 packets
        await b.run(lambda: len(b.sent) == 133, 6000)
        await b.quiet(150)
        assert len(b.sent) == 133 and b.sent[-1]["a"] == 1  # both the announced window and the record ring end here

    run(test)


def test_cwnd_and_wimm_limits() -> None:
    """New data waits for cwnd, and the first packet of a WriteIMM for peer_max_wimm (MRC-REQ-071, 074)."""
    async def test(b: Bench) -> None:
        await b.connect(cwnd=4 * 1112 + 1024, mtu=2, timer_exp=20, peer_max_wimm=2, glob={"probe_time": 60000})
        await b.post(0, 8 * 1024)
        await b.run(lambda: len(b.sent) == 5)
        await b.quiet(150)
        assert len(b.sent) == 5 and b.sent[-1]["a"] == 1
        b.sack(0, b.sent[4]["psn"], cause=b.sent[4], rcvd=5 * 1112)
        await b.run(lambda: len(b.sent) == 8)
        await answer(b)
        for i in range(4):
            await b.post(0, 10, imm=i)
        await b.run(lambda: len(b.sent) == 10)
        await b.quiet(150)
        assert len(b.sent) == 10 and b.sent[-1]["a"] == 1
        b.ack(0, b.sent[8]["psn"])
        await b.run(lambda: len(b.sent) == 11)
        await b.quiet(150)
        assert len(b.sent) == 11
        await answer(b)
        await b.run(lambda: len(b.sent) == 12)
        await answer(b)
        assert len(b.completions) == 5
        at_rest(b)

    run(test)


def test_path_credit() -> None:
    """With every EV's credit used up new data waits; retire gives credit back (MRC-REQ-144, 145)."""
    async def test(b: Bench) -> None:
        await b.connect(active=2, path_credit=4, timer_exp=20, glob={"probe_time": 60000})
        await b.post(0, 40 * 1024)
        await b.run(lambda: len(b.sent) == 16)
        await b.quiet(150)
        assert len(b.sent) == 16 and {tx["evi"] for tx in b.sent} == {0, 1, 2, 3}
        while len(b.sent) < 40:
            cause, count = b.sent[-1], len(b.sent)
            until = min(40, count + 16)
            b.sack(0, cause["psn"], cause=cause, rcvd=count * 1112)
            await b.run(lambda until=until: len(b.sent) == until)
        await answer(b)
        assert len(b.completions) == 1
        at_rest(b)

    run(test, BOTH)


def test_sack_out_of_order_and_forged() -> None:
    """Bitmap rows across a row boundary; forged and out-of-range SACKs change nothing (MRC-REQ-079 to 081)."""
    async def test(b: Bench) -> None:
        await b.connect(sq_psn=0xFFFFD0, mtu=0, timer_exp=20, glob={"probe_time": 60000})
        await b.post(0, 256 * 60)
        await b.run(lambda: len(b.sent) == 60, 4000)
        await b.run(lambda: not b.departs)
        base = b.sent[2]["psn"]
        odd = sum(1 << i for i in range(1, 58, 2))
        cack = b.sent[1]["psn"]
        for bad in ({"rcvd": 61 * 344}, {"rcvd": 0, "cack": b.sent[-1]["psn"] + 1}, {"rcvd": 0, "cack": (cack - (1 << 15) - 3) & 0xFFFFFF}):
            b.sack(0, bad.get("cack", cack), cause=b.sent[3], rcvd=bad["rcvd"], bitmap=odd, base=base)
        await b.quiet(100)
        assert b.drops == [Drop.SACK_FORGED, Drop.SACK_RANGE, Drop.SACK_RANGE] and not b.kinds(Kind.RETIRE)
        b.sack(0, cack, cause={**b.sent[3], "stamp": 0}, rcvd=(2 + 29) * 344, bitmap=odd, base=base)
        await b.run(lambda: len(b.kinds(Kind.RETIRE)) == 31, 2000)
        assert {r["body"]["psn"] for r in b.kinds(Kind.RETIRE)} == {tx["psn"] for i, tx in enumerate(b.sent) if i < 2 or i % 2}
        await answer(b)
        assert len(b.kinds(Kind.RETIRE)) == 60
        at_rest(b)

    run(test)


def test_commands_refused() -> None:
    """Every refusal of the host's commands, and what it leaves alone (MRC-REQ-052 to 055, 064)."""
    async def test(b: Bench) -> None:
        assert await b.command(Command.SET_QP, 0, layout=fixed.QP_CONFIG) == PostStatus.BAD_STATE
        assert await b.post(0) == PostStatus.BAD_STATE
        assert await b.command(Command.POST, 0, layout=fixed.WORK_REQUEST) == PostStatus.BAD_LENGTH
        for state in (QpState.RTR, QpState.RTS, 6):
            assert await b.modify(0, state) == PostStatus.BAD_STATE
        await b.connect(timer_exp=20)
        assert await b.command(Command.SET_EV, 0, 4, layout=fixed.EV_CONFIG) == PostStatus.BAD_QP
        assert await b.command(Command.SET_EV, 0, 3, layout=fixed.EV_CONFIG) == PostStatus.BAD_STATE
        assert await b.command(Command.EV_STATE, 0, 4, layout=fixed.EV_STATE_CONFIG) == PostStatus.BAD_QP
        assert await b.command(Command.SET_GLOBAL, 0, layout=fixed.GLOBAL_CONFIG) == PostStatus.BAD_STATE
        assert await b.command(Command.PORT, 0, 2, layout=fixed.PORT_CONFIG) == PostStatus.BAD_QP
        assert await b.command(Command.NOP) == PostStatus.BAD_OPCODE
        assert await b.modify(0, QpState.INIT) == PostStatus.BAD_STATE
        b.room = 0
        for i in range(TINY.msg_slots):
            assert await b.post(0, 1, wr_id=i) == OK
        assert await b.post(0, 1) == PostStatus.FULL
        b.room = 3
        await b.run(lambda: len(b.sent) == TINY.msg_slots)
        await answer(b)
        assert [c["wr_id"] for c in b.completions] == list(range(TINY.msg_slots))
        assert await b.post(0, 1) == OK

    run(test)


def test_feedback_refused() -> None:
    """Drop causes of feedback, in their order, each counted alone (MRC-REQ-078, 085, 087, 088)."""
    async def test(b: Bench) -> None:
        b.sack(0, 5)
        b.ack(1, 5, known=0)
        await b.connect(timer_exp=20)
        await b.post(0, 2048)
        await b.run(lambda: len(b.sent) == 2 and not b.departs)
        first = b.sent[0]
        b.sack(0, first["psn"], addr_ok=0, pkey_ok=0)
        b.nack(first, 1, pkey_ok=0)
        b.ack(0, first["psn"])  # not a message end
        b.ack(0, b.sent[1]["psn"], 0x64)
        b.ack(0, (b.sent[1]["psn"] + 1) & 0xFFFFFF, 0x61)  # not sent
        b.nack({**first, "ev": first["ev"] ^ 1}, 1)
        b.nack(first, 1, echo=first["stamp"] ^ 2)
        b.nack(first, 0x44)
        b.sack(0, (first["psn"] - 1) & 0xFFFFFF, cause={**first, "ev": 5}, rcvd=0)
        await b.run(lambda: len(b.drops) == 11)
        assert b.drops == [Drop.QP_STATE, Drop.UNKNOWN_QP, Drop.ADDRESS, Drop.PKEY, *[Drop.ACK_IGNORED] * 3, *[Drop.NACK_IGNORED] * 3, Drop.EV_UNMATCHED]
        assert not b.kinds(Kind.JUDGE) and b.records[-1]["ctx"]["unack_psn"] == (first["psn"] - 1) & 0xFFFFFF

    run(test)


def test_back_pressure_loses_nothing() -> None:
    """Slow sinks on every stream: the same packets and completions, each once (X-07, O-05)."""
    async def test(b: Bench) -> None:
        b.ready = lambda name: b.rng.random() < 0.1
        await b.connect(timer_exp=20, glob={"probe_time": 60000})
        for i in range(6):
            await b.post(0, 1500, wr_id=i)
        await b.run(lambda: len(b.sent) == 12, 4000)
        assert [tx["psn"] for tx in b.sent] == [(0xFFFFF0 + i) & 0xFFFFFF for i in range(12)]
        await answer(b)
        await b.run(lambda: len(b.completions) == 6)
        assert [c["wr_id"] for c in b.completions] == list(range(6))
        at_rest(b)

    run(test, seed=3)


def test_responder_view_and_ports() -> None:
    """Second read ports show rows and values one clock later; port_up is link and administrative state (MRC-REQ-155)."""
    async def test(b: Bench) -> None:
        await b.connect(1)
        await b.command(Command.EV_STATE, 1, 0, layout=fixed.EV_STATE_CONFIG, denied=1)
        b.ctx.set(b.dut.path_qp, 1)
        b.ctx.set(b.dut.path_ev_index, 3)
        await b.quiet(2)
        rows = [{name: b.ctx.get(getattr(b.dut.path_row[n], name)) for name in ("active", "good", "denied")} for n in range(2)]
        assert rows == [{"active": 0b10, "good": 0b10, "denied": 0b01}, {"active": 0b01, "good": 0b11, "denied": 0}]
        assert b.ctx.get(b.dut.path_ev) == b.ev_value(1, 3)
        await b.command(Command.PORT, 0, 1, layout=fixed.PORT_CONFIG, up=0)
        assert b.ctx.get(b.dut.port_up) == 0b01
        b.up = 0b10
        await b.quiet(20)
        assert b.ctx.get(b.dut.port_up) == 0
        await b.command(Command.PORT, 0, 1, layout=fixed.PORT_CONFIG, up=1)
        assert b.ctx.get(b.dut.port_up) == 0b10
        await b.post(1, 3000)
        await b.run(lambda: len(b.sent) == 3)
        assert {tx["plane"] for tx in b.sent} == {1}

    run(test)


def test_trace_changes_nothing() -> None:
    """The requestor without trace ports sends the same descriptors at the same clocks."""
    async def test(b: Bench) -> None:
        await b.connect(timer_exp=20, glob={"probe_time": 60000})
        await b.post(0, 5000, imm=1)
        await b.run(lambda: len(b.sent) == 5 and not b.departs)
        b.nack(b.sent[2], spec.NackReason.TRIMMED)
        await b.run(lambda: len(b.sent) == 6 and not b.departs)
        await answer(b)

    plain, traced = simulate(test, TINY, trace_on=False), simulate(test, TINY)
    assert not hasattr(plain.dut, "trace_valid") and len(traced.records) > 20 and not plain.records
    assert plain.sent == traced.sent and len(plain.sent) == 6
    assert plain.completions == traced.completions and plain.completions[0]["status"] == WcStatus.SUCCESS
