"""RECEIVE: admission, PSN classes, packet checks, placement. The golden model watches every record; here the expected values are written out."""

from __future__ import annotations

import pytest

from model.spec import Drop, Kind, NackReason, Opcode, QpState, Syndrome
from verif.responder.bench import Bench

M24 = 0xFFFFFF
START = 0xFFFFF0  # the window spans the wrap


def connected(**config: int) -> Bench:
    b = Bench()
    b.setup()
    b.connect(0, START, **config)
    b.run()
    return b


def last(b: Bench) -> dict:
    return b.bodies(Kind.RECEIVE)[-1]


def answers(b: Bench, since: int) -> list[tuple[int, int]]:
    """(opcode, reason) of the frames sent after the first ``since``."""
    return [(f["opcode"], f["ext"]["nack"]["nack_reason"] if f["opcode"] == Opcode.NACK else 0) for f in b.tx[since:]]


def test_psn_classes_across_the_wrap() -> None:
    """MRC-REQ-192, 193, 195, S-01: the classes by distance from ePSN, at both edges of each, and what each answers."""
    b = connected()
    for n in range(20):  # ePSN goes over the wrap
        b.frame(0, Opcode.WRITE_ONLY, START + n & M24)
    b.frame(0, Opcode.WRITE_ONLY, START + 25 & M24)  # recorded above a gap
    b.run()
    epsn = START + 20 & M24
    assert b.records[-1]["ctx"]["cack_psn"] == epsn - 1 & M24
    window = 128
    for d, drop, reply in (
        (-1, Drop.DUPLICATE, [(Opcode.ACK, 0), (Opcode.SACK, 0)]), (-0x8000, Drop.DUPLICATE, [(Opcode.ACK, 0), (Opcode.SACK, 0)]),
        (-0x8001, Drop.ANCIENT, []), (-0x800000, Drop.ANCIENT, []), (5, Drop.DUPLICATE, [(Opcode.SACK, 0)]),
        (window, Drop.OUT_OF_WINDOW, [(Opcode.NACK, NackReason.PSN_OOR_WINDOW)]), (0x7FFFFF, Drop.OUT_OF_WINDOW, [(Opcode.NACK, NackReason.PSN_OOR_WINDOW)]),
        (window + 5, Drop.OUT_OF_WINDOW, [(Opcode.NACK, NackReason.PSN_OOR_WINDOW)]),  # shares its bit of the ring with the recorded one
        (window - 1, 0xFF, []), (window - 1, Drop.DUPLICATE, [(Opcode.SACK, 0)]),
    ):  # fmt: skip
        sent, writes = len(b.tx), len(b.verdict)
        b.frame(0, Opcode.WRITE_ONLY, epsn + d & M24)
        b.run()
        assert (last(b)["drop"], answers(b, sent)) == (drop, reply), d
        assert b.verdict[writes:] == [{"write": drop == 0xFF, "addr": 0x80_0000 if drop == 0xFF else 0, "plen": 4, "qp": 0}]
    assert b.records[-1]["ctx"]["ooo_count"] == 2 and b.records[-1]["ctx"]["cack_psn"] == epsn - 1 & M24


def test_ahead_can_be_silent() -> None:
    """MRC-REQ-195: oor_silent."""
    b = Bench()
    b.setup(oor_silent=1)
    b.connect(0, START)
    b.run()
    b.frame(0, Opcode.WRITE_ONLY, START + 128 & M24, a=1)
    b.run()
    assert b.drops == [Drop.OUT_OF_WINDOW] and b.tx == []


def test_admission_order() -> None:
    """MRC-REQ-190, 191, 241: the first failing check alone is counted; the QP is untouched and the next good frame works."""
    b = Bench()
    b.setup()
    b.connect(0, START)
    b.modify(1, QpState.INIT)
    b.run()
    wrong = {"known": 0, "qp": 1, "addr_ok": 0, "pkey_ok": 0}
    for missing, drop in ((0, Drop.UNKNOWN_QP), (1, Drop.QP_STATE), (2, Drop.ADDRESS), (3, Drop.PKEY)):
        for opcode in (Opcode.WRITE_ONLY, Opcode.PROBE):
            fields = dict(list(wrong.items())[missing:])
            b.frame(fields.pop("qp", 0), opcode, START, **fields)
        b.run()
        assert b.drops[-2:] == [drop, drop] and b.tx == []
    assert [v["write"] for v in b.verdict] == [0] * 4  # data frames only
    b.frame(0, Opcode.WRITE_ONLY, START, a=1)
    b.run()
    assert b.verdict[-1]["write"] == 1 and [f["opcode"] for f in b.tx] == [Opcode.ACK, Opcode.SACK]


def test_trimmed() -> None:
    """MRC-REQ-196: a new trimmed packet causes its NACK alone and is still new when it comes back; a trimmed duplicate is a duplicate."""
    b = connected()
    for trimmed, reason in ((1, NackReason.TRIMMED), (2, NackReason.TRIMMED_LASTHOP)):
        b.frame(0, Opcode.WRITE_ONLY, START + 1 & M24, trimmed=trimmed, plen=0, a=1, ce=1, rtx=1, ts=0, ev=0x12345678)
        b.run()
        nack = b.tx[-1]["ext"]["nack"]
        assert (nack["nack_reason"], nack["nack_psn"], nack["entropy"], nack["echo_timestamp"]) == (reason, START + 1 & M24, 0x12345678, 0)
        assert (nack["cc_type"], nack["spdcid"], nack["dpdcid"]) == (2, 0xC211, 0x100) and last(b)["drop"] == 0xFF
    assert len(b.tx) == 2 and b.records[-1]["ctx"]["ooo_count"] == 0 and b.drops == []
    b.frame(0, Opcode.WRITE_ONLY, START + 1 & M24)
    b.frame(0, Opcode.WRITE_ONLY, START + 1 & M24, trimmed=1, plen=0)
    b.run()
    assert b.verdict[-2]["write"] == 1 and b.drops == [Drop.DUPLICATE] and b.tx[-1]["opcode"] == Opcode.SACK

    b = connected(trim_nack=0)
    b.frame(0, Opcode.WRITE_ONLY, START, trimmed=1, plen=0)
    b.run()
    assert b.drops == [Drop.TRIM_IGNORED] and b.tx == []


SOUND = {
    "first": (Opcode.WRITE_FIRST, {"plen": 256, "dmalen": 257}), "middle": (Opcode.WRITE_MIDDLE, {"plen": 256, "dmalen": 600}),
    "last": (Opcode.WRITE_LAST, {"plen": 1, "dmalen": 257}), "last full": (Opcode.WRITE_LAST, {"plen": 256, "dmalen": 512}),
    "only": (Opcode.WRITE_ONLY, {"plen": 256, "dmalen": 256}), "only 1": (Opcode.WRITE_ONLY, {"plen": 1, "dmalen": 1}),
    "largest": (Opcode.WRITE_LAST, {"plen": 255, "dmalen": 0xFFFFFFFF}),
    "region's end": (Opcode.WRITE_ONLY, {"plen": 8, "dmalen": 8, "va": 0x10000 + (1 << 20) - 8}),
}  # fmt: skip
WRONG = {
    "length 0": (Opcode.WRITE_ONLY, {"plen": 0, "dmalen": 0}, 0x61), "first too short a message": (Opcode.WRITE_FIRST, {"plen": 256, "dmalen": 256}, 0x61),
    "first short": (Opcode.WRITE_FIRST, {"plen": 252, "dmalen": 600}, 0x61), "middle short": (Opcode.WRITE_MIDDLE, {"plen": 255, "dmalen": 600}, 0x61),
    "middle long": (Opcode.WRITE_MIDDLE, {"plen": 260, "dmalen": 600}, 0x61), "last of one": (Opcode.WRITE_LAST, {"plen": 256, "dmalen": 256}, 0x61),
    "last wrong": (Opcode.WRITE_LAST_IMM, {"plen": 2, "dmalen": 257}, 0x61), "only long": (Opcode.WRITE_ONLY, {"plen": 257, "dmalen": 257}, 0x61),
    "only wrong": (Opcode.WRITE_ONLY_IMM, {"plen": 4, "dmalen": 5}, 0x61), "pad": (Opcode.WRITE_ONLY, {"plen": 4, "dmalen": 4, "udp_len": 65}, 0x61),
    "rqmsn": (Opcode.WRITE_ONLY_IMM, {"rqmsn": 32}, 0x61), "key": (Opcode.WRITE_ONLY, {"rkey": 0x78000000}, 0x62),
    "key beyond the table": (Opcode.WRITE_ONLY, {"rkey": 0x77000008}, 0x62), "no region": (Opcode.WRITE_ONLY, {"rkey": 0x77000002}, 0x62),
    "before": (Opcode.WRITE_ONLY, {"va": 0xFFFF}, 0x62), "behind": (Opcode.WRITE_ONLY, {"va": 0x10000 + (1 << 20) - 3}, 0x62),
    "wrap": (Opcode.WRITE_ONLY, {"va": (1 << 64) - 2}, 0x62), "order": (Opcode.WRITE_ONLY_IMM, {"rkey": 1, "rqmsn": 32}, 0x61),
}  # fmt: skip


def test_sound_packets_are_placed_at_once() -> None:
    """MRC-REQ-200, 203, 204, 206, I-03: the limits that are still right, out of order, each at its address."""
    b = connected()
    for n, (opcode, fields) in enumerate(reversed(SOUND.values())):
        va = fields.get("va", 0x10000 + 0x111 * n)
        b.frame(0, opcode, START + 2 * n + 1 & M24, **(fields | {"va": va}))
        b.run()
        assert b.verdict[-1] == {"write": 1, "addr": 0x80_0000 + va - 0x10000, "plen": fields["plen"], "qp": 0}
    sizes = sum(8 + 12 + 4 + 4 + 16 + (fields["plen"] + 3 & ~3) + 4 + 40 for _, fields in SOUND.values())
    assert b.records[-1]["ctx"]["rcvd_bytes"] == sizes and b.records[-1]["ctx"]["ooo_count"] == len(SOUND)


@pytest.mark.parametrize("half", (0, 1))
def test_refused_packets(half: int) -> None:
    """MRC-REQ-200 to 203, 253: each packet check sends its NAK with that PSN, records nothing, and the QP is in ERROR; the requestor is told."""
    b = Bench()
    b.setup()
    for n, (name, (opcode, fields, syndrome)) in enumerate(list(WRONG.items())[half::2]):
        b.connect(0, START)
        b.run()
        b.frame(0, opcode, START + 3 & M24, **fields)
        b.run()
        nak = b.tx[-1]
        assert (nak["opcode"], nak["psn"], nak["ext"]["ack"]["syndrome"]) == (Opcode.ACK, START + 3 & M24, syndrome), name
        ctx = b.records[-1]["ctx"]
        assert (ctx["state"], ctx["ooo_count"], ctx["rcvd_bytes"], ctx["nak"]) == (QpState.ERROR, 0, 0, syndrome), name
        assert b.verdict[-1]["write"] == 0 and b.drops[-1] == Drop.NAKED and b.peer_out == [0] * (n + 1), name
        b.frame(0, Opcode.PROBE, 0, plane=1)
        b.frame(0, Opcode.WRITE_ONLY, START)
        b.run()
        assert b.tx[-1]["ext"]["ack"] == {"syndrome": syndrome, "aeth_msn": 0} and b.tx[-1]["plane"] == 1 and b.drops[-1] == Drop.QP_ERROR, name
        b.modify(0, QpState.RESET)
        b.run()
    assert Syndrome.NAK_REMOTE_ACCESS in {f["ext"]["ack"]["syndrome"] for f in b.tx}
