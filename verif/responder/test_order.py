"""Completions in order, whatever the order of arrival: message ends, WriteIMMs, receive entries, transport ACKs."""

from __future__ import annotations

from hdl.params import preset
from model.spec import Kind, Opcode, QpState, WcStatus
from verif.responder.bench import Bench, Stall

M24 = 0xFFFFFF
START = 0xFFFFF8


def connected(receives: int = 8, stall: Stall | None = None, params: object = None) -> Bench:
    b = Bench(stall=stall or Stall(), params=params or preset("tiny", trace=True, tick_div=4))
    b.setup()
    b.connect(0, START, receives=receives)
    b.run()
    return b


def message(first: int, length: int, rqmsn: int, imm: int | None = None) -> list[tuple[Opcode, int, dict[str, int]]]:
    """Frames of one message of ``length`` bytes whose first packet is number ``first``."""
    count = -(-length // 256)
    out = []
    for k in range(count):
        end, start = k == count - 1, k == 0
        opcode = Opcode.WRITE_MIDDLE
        if end:
            opcode = (Opcode.WRITE_ONLY if start else Opcode.WRITE_LAST) if imm is None else (Opcode.WRITE_ONLY_IMM if start else Opcode.WRITE_LAST_IMM)
        elif start:
            opcode = Opcode.WRITE_FIRST
        fields = {"plen": length - 256 * k if end else 256, "dmalen": length, "rqmsn": rqmsn, "va": 0x10000 + 256 * (first + k)}
        out.append((opcode, START + first + k & M24, fields | ({"imm": imm} if end and imm is not None else {})))
    return out


def put(b: Bench, frame: tuple[Opcode, int, dict[str, int]]) -> None:
    opcode, psn, fields = frame
    b.frame(0, opcode, psn, **fields)


def acks(b: Bench) -> list[tuple[int, int]]:
    return [(f["psn"] - START & M24, f["ext"]["ack"]["aeth_msn"]) for f in b.tx if f["opcode"] == Opcode.ACK]


def test_write_imm_whose_last_packet_arrives_first() -> None:
    """MRC-REQ-250, 251, O-01 to O-03: the completion comes after all 8 packets, with immediate and length unchanged; one entry is used."""
    b = connected()
    frames = message(0, 7 * 256 + 57, 0, 0x80000001)
    for frame in reversed(frames[1:]):
        put(b, frame)
    b.run()
    assert b.completion == [] and acks(b) == []
    put(b, frames[0])
    b.run()
    assert b.completion == [{"qp": 0, "recv": 1, "status": 0, "wr_id": 0, "length": 7 * 256 + 57, "imm": 0x80000001}]
    assert acks(b) == [(7, 1)] and b.records[-1]["ctx"]["rq_head"] == 1
    assert all(r["ctx"]["next_rqmsn"] == 0 for r in b.records if r["kind"] == Kind.RECEIVE)


def test_interleaved_messages_complete_in_order() -> None:
    """MRC-REQ-250 to 252: a WRITE between two WriteIMMs, all interleaved, backwards: completions by RQMSN, one ACK names the newest end."""
    b = connected()
    frames = message(0, 600, 0, 0xA) + message(3, 300, 1) + message(5, 512, 1, 0xB) + message(7, 10, 2)
    for frame in reversed(frames):
        put(b, frame)
    b.run()
    assert [(c["wr_id"], c["imm"], c["length"]) for c in b.completion] == [(0, 0xA, 600), (1, 0xB, 512)]
    ends = [body["psn"] - START & M24 for body in b.bodies(Kind.RECV_COMPLETE)]
    assert ends == [2, 4, 6, 7] and acks(b) == [(7, 4)]


def test_probe_and_duplicate_repeat_the_newest_ack() -> None:
    """MRC-REQ-193, 221, R-09, R-10: a lost ACK is repeated; nothing is completed twice."""
    b = connected()
    b.frame(0, Opcode.PROBE, 0)
    b.run()
    assert acks(b) == []
    frames = message(0, 300, 0, 5)
    for frame in frames:
        put(b, frame)
    b.run()
    put(b, frames[0])
    b.run()
    b.frame(0, Opcode.PROBE, 0, plane=1)
    b.run()
    assert acks(b) == [(1, 1)] * 3 and len(b.completion) == 1
    assert [f["plane"] for f in b.tx if f["opcode"] == Opcode.ACK] == [0, 0, 1]


def test_long_run_over_the_ring() -> None:
    """Every bit of the ring is used many times (PSN and PSN + W share one); ends in each row, arrivals in pairs swapped, two rows apart."""
    b = connected(receives=8)
    frames = [f for n in range(90) for f in message(3 * n, 2 * 256 + 1 + n, n // 10 + 1 if n % 10 else n // 10, n if n % 10 == 0 else None)]
    wr_id = 100
    for n, i in enumerate([j ^ 1 for j in range(270)]):
        put(b, frames[i])
        if n % 60 == 59:
            for _ in range(2):
                b.post_recv(0, wr_id)
                wr_id += 1
            b.run()
    b.run()
    assert [c["imm"] for c in b.completion] == list(range(0, 90, 10)) and acks(b)[-1] == (269, 90)
    assert b.records[-1]["ctx"]["ooo_count"] == 0


def test_one_message_longer_than_the_ring() -> None:
    """A message of 300 packets: its end is found although done_psn is more than two rings behind."""
    b = connected()
    for frame in message(0, 300 * 256, 0, 77):
        put(b, frame)
    b.run(clocks=30_000)
    assert [c["imm"] for c in b.completion] == [77] and acks(b) == [(299, 1)]


def test_stash_limits() -> None:
    """MRC-REQ-253: RQMSN next + 31 is stashed, next + 32 refused (see test_receive); RQMSN of a WRITE is ignored."""
    b = connected()
    b.frame(0, Opcode.WRITE_ONLY, START, rqmsn=40_000)
    b.frame(0, Opcode.WRITE_ONLY_IMM, START + 33 & M24, rqmsn=31)
    b.run()
    assert [v["write"] for v in b.verdict] == [1, 1] and b.records[-1]["ctx"]["state"] == QpState.RTS


def test_wrong_rqmsn_at_its_turn() -> None:
    """MRC-REQ-254: a WriteIMM that is not the next one: NAK 0x61 of its last PSN, no completion, entries flushed."""
    b = connected(receives=2)
    b.frame(0, Opcode.WRITE_ONLY_IMM, START, rqmsn=1)
    b.run()
    nak = [f for f in b.tx if f["opcode"] == Opcode.ACK][-1]
    assert (nak["psn"], nak["ext"]["ack"]["syndrome"]) == (START, 0x61)
    assert [(c["status"], c["wr_id"]) for c in b.completion] == [(WcStatus.FLUSHED, 0), (WcStatus.FLUSHED, 1)] and b.peer_out == [0]


def test_no_receive_entry() -> None:
    """MRC-REQ-255: the messages before it complete; NAK 0x63 of its last PSN; the NAK, not an ACK, leaves."""
    b = connected(receives=1)
    for n in range(3):
        b.frame(0, Opcode.WRITE_ONLY_IMM, START + n & M24, rqmsn=n, imm=n)
    b.run()
    assert [(c["status"], c["imm"]) for c in b.completion] == [(WcStatus.SUCCESS, 0)]
    last = [f for f in b.tx if f["opcode"] == Opcode.ACK][-1]
    assert (last["psn"], last["ext"]["ack"]["syndrome"], last["ext"]["ack"]["aeth_msn"]) == (START + 1 & M24, 0x63, 1)
    assert b.records[-1]["ctx"]["state"] == QpState.ERROR


def test_held_completions_stop_their_qp_only() -> None:
    """R-02, X-08: with the completion stream shut, the other QP goes on; nothing of the held QP is lost when it opens."""
    b = connected(receives=4, stall=Stall(completion=1.0))
    b.connect(1, 5)
    b.run(quiet=60)
    for n in range(3):
        b.frame(0, Opcode.WRITE_ONLY_IMM, START + n & M24, rqmsn=n, imm=n)
        b.frame(1, Opcode.WRITE_ONLY, 5 + n, a=1)
    b.run_until(lambda: sum(f["qp"] == 1 and f["opcode"] == Opcode.SACK for f in b.tx) == 2)
    b.run_until(lambda: b.clock % 200 == 0)
    assert [body["psn"] - START & M24 for body in b.bodies(Kind.RECV_COMPLETE) if body["imm_valid"]] == [0]
    b.outputs["completion"].stall = 0.0
    b.run()
    assert [c["imm"] for c in b.completion] == [0, 1, 2]
