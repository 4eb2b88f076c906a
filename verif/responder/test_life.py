"""A QP's life as responder: commands, ERROR, RESET and reuse; what happens when things stand still."""

from __future__ import annotations

import pytest

from hdl.layouts import GLOBAL_CONFIG, MODIFY_CONFIG, QP_CONFIG
from model.spec import Command, Drop, Kind, Opcode, PostStatus, QpState, WcStatus
from verif.responder.bench import GLOBAL, QP, Bench, Stall

OK, FULL, BAD_STATE = PostStatus.OK, PostStatus.FULL, PostStatus.BAD_STATE


def test_command_table() -> None:
    """MRC-REQ-246 to 248: every command in every state, and what it leaves."""
    b = Bench()
    b.setup()
    life = [QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS]
    for n, state in enumerate(life):
        if n:
            b.modify(0, state)
        b.run()
        b.status.clear()
        wrong = [t for t in (QpState.INIT, QpState.RTR, QpState.RTS, 5, 7) if t != (life[n + 1] if n < 3 else None)]
        for target in wrong:
            b.command(Command.MODIFY, 0, 0, MODIFY_CONFIG, state=target)
        b.command(Command.SET_QP, 0, 0, QP_CONFIG, **QP)
        b.post_recv(0, 9)
        b.command(Command.SET_GLOBAL, 0, 0, GLOBAL_CONFIG, **GLOBAL)
        b.command(Command.PORT, 0, 1)
        b.run()
        expected = [BAD_STATE] * len(wrong) + [OK if state == QpState.INIT else BAD_STATE, BAD_STATE if state == QpState.RESET else OK,
                    OK if n < 2 else BAD_STATE, OK]  # fmt: skip
        assert b.status == expected, state
        assert b.golden.model.qp[0].state == state
    assert b.records[-3]["ctx"]["rq_tail"] == 3
    b.modify(0, QpState.RESET)
    b.run()
    assert not any(value if isinstance(value, int) else any(value) for value in b.records[-1]["ctx"].values())


def test_receive_queue_full_and_flushed() -> None:
    """MRC-REQ-242, 248: rq_entries fit, one more is FULL; ERROR flushes all in order, later ones too, each once."""
    b = Bench(stall=Stall(completion=0.7), seed=3)
    b.setup()
    b.connect(1, 0, receives=16)
    b.run()
    b.status.clear()
    b.post_recv(1, 99)
    b.modify(1, QpState.ERROR)
    b.run()
    b.post_recv(1, 77)
    b.run()
    assert b.status == [FULL, OK, OK]
    assert [(c["status"], c["wr_id"]) for c in b.completion] == [(WcStatus.FLUSHED, n) for n in [*range(0x100, 0x110), 77]]
    assert b.peer_out == []  # the host told both owners


def test_error_drops_pending_answers() -> None:
    """MRC-REQ-241 to 244: SACKs, the ACK and stashed WriteIMMs of the QP vanish, the other QP's answers leave; without a NAK probes are dropped."""
    b = Bench()
    b.setup()
    b.connect(0, 0, receives=1)
    b.connect(1, 0)
    b.run()
    b.room = 0
    for n in range(4):
        b.frame(0, Opcode.WRITE_ONLY, n, a=1)
        b.frame(1, Opcode.WRITE_MIDDLE, n, a=1, plen=256, dmalen=600)
    b.frame(0, Opcode.WRITE_ONLY_IMM, 9, rqmsn=0)
    b.run_until(lambda: not b.rx)
    b.asked_peer.add(0)
    b.peer_error.append(0)
    b.run_until(lambda: len(b.bodies(Kind.QP_ERROR)) == 1)
    b.room = 3
    b.frame(0, Opcode.PROBE, 0)
    b.peer_error.append(0)  # once more: nothing
    b.run()
    assert {f["qp"] for f in b.tx} == {1} and len(b.tx) == 4 and b.drops == [Drop.QP_ERROR]
    assert b.kinds(0).count(Kind.QP_ERROR) == 1 and b.peer_out == [] and b.bodies(Kind.QP_ERROR)[0]["cause"] == WcStatus.LOCAL_QP_OPERATION


def test_host_memory_error() -> None:
    """MRC-REQ-243: NAK 0x63 of the gap (else of cack_psn) on the last packet's plane, the requestor is told; in RESET nothing happens."""
    b = Bench()
    b.setup()
    b.wr_error.append(1)
    b.connect(0, 7)
    b.run()
    for n in (7, 8, 10):
        b.frame(0, Opcode.WRITE_ONLY, n, plane=1)
    b.run()
    b.wr_error.append(0)
    b.run()
    nak = b.tx[-1]
    assert (nak["psn"], nak["ext"]["ack"], nak["plane"], nak["wr_stamp"]) == (9, {"syndrome": 0x63, "aeth_msn": 2}, 1, 1)
    assert b.peer_out == [0] and b.bodies(Kind.QP_ERROR)[-1]["cause"] == WcStatus.LOCAL_MEMORY


@pytest.mark.parametrize("state", ("RTS", "ERROR"))
def test_reset_waits_and_the_next_life_is_clean(state: str) -> None:
    """MRC-REQ-245, 247, O-08: RESET waits for queued answers; rows, stash and entries of the old life are gone; the same PSNs are new."""
    b = Bench()
    b.setup()
    b.connect(0, 0, receives=2)
    b.run()
    b.room = 0
    for n in (1, 2, 70, 5):
        b.frame(0, Opcode.WRITE_ONLY, n, a=1)
    b.frame(0, Opcode.WRITE_ONLY_IMM, 6, rqmsn=1)
    if state == "ERROR":
        b.frame(0, Opcode.WRITE_ONLY, 7, rkey=0)
    b.run_until(lambda: not b.rx)
    b.modify(0, QpState.RESET)
    b.frame(1, Opcode.WRITE_ONLY, 0)  # other traffic waits behind the RESET, and comes after it
    answered = len(b.status)
    b.run_until(lambda: b.clock % 500 == 0)
    assert len(b.status) == answered
    b.room = 3
    b.run()
    assert len(b.status) == answered + 1 and len(b.tx) == (4 if state == "RTS" else 1)
    assert b.drops[-1] == Drop.QP_STATE
    b.connect(0, 0, receives=1)
    b.run()
    done = len(b.completion)
    for n in (70, 5, 6, 2, 1):
        b.frame(0, Opcode.WRITE_ONLY, n)
    b.frame(0, Opcode.WRITE_ONLY_IMM, 0, rqmsn=0, imm=3)
    b.run()
    assert [v["write"] for v in b.verdict[-6:]] == [1] * 6 and [c["imm"] for c in b.completion[done:]] == [3]
    assert b.records[-1]["ctx"]["cack_psn"] == 2 and b.records[-1]["ctx"]["ooo_count"] == 3


def test_port_changes_are_steps() -> None:
    """Every change of the port mask is a PORT step; an answer uses the mask of the last one."""
    b = Bench()
    b.setup()
    b.connect(0, 0)
    b.run()
    b.up = 0b01
    b.run()
    b.up = 0b11
    b.run()
    assert [body["up"] for body in b.bodies(Kind.PORT)] == [1, 3]


@pytest.mark.parametrize("shut", ("tx", "verdict", "completion", "status", "peer_error_out"))
def test_shut_streams(shut: str) -> None:
    """X-06 to X-08: each output stands still for a while under full load; nothing is lost, doubled or reordered when it opens."""
    b = Bench()
    b.setup()
    b.connect(0, 0, receives=8)
    b.connect(1, 0)
    b.run()
    b.outputs[shut].stall = 1.0
    for n in range(30):
        b.frame(0, Opcode.WRITE_ONLY_IMM, n, rqmsn=n, a=1, imm=n) if n < 8 else b.frame(0, Opcode.WRITE_ONLY, n, a=1)
    b.frame(1, Opcode.WRITE_ONLY, 3, rkey=0)
    b.modify(1, QpState.INIT)
    b.run_until(lambda: b.clock % 1500 == 0)
    b.outputs[shut].stall = 0.0
    b.run()
    assert [c["imm"] for c in b.completion] == list(range(8)) and len(b.verdict) == 31 and b.peer_out == [1] and b.status[-1] == BAD_STATE
    assert sum(f["opcode"] == Opcode.SACK for f in b.tx) == 30
