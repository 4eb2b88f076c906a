"""Scripted flows through the requestor when things go wrong: NACK, loss evidence, timeout, probes, errors, RESET. Lockstep with the model."""

from __future__ import annotations

from hdl import layouts as fixed
from hdl.params import preset
from model import spec
from model.spec import Command, Kind, NackReason, Opcode, QpState, WcStatus
from verif.requestor.bench import OK, Bench, packet_size
from verif.requestor.test_flows import answer, at_rest, run

BOTH = preset("tiny", active_evs=2)
FAR = {"probe_time": 60000}


def test_nack_resends_on_another_ev() -> None:
    """TRIMMED: EV to SKIP, same headers again with rtx and A, another EV, before new data; a late NACK is ignored (MRC-REQ-070, 075, 085, 086)."""
    async def test(b: Bench) -> None:
        await b.connect(active=2, timer_exp=20, glob=FAR)
        await b.post(0, 4000, imm=9)
        await b.run(lambda: len(b.sent) == 4 and not b.departs)
        lost = b.sent[1]
        b.nack(lost, NackReason.TRIMMED)
        await b.post(0, 100)
        await b.run(lambda: len(b.sent) == 6 and not b.departs)
        again = next(tx for tx in b.sent[4:] if tx["rtx"])
        assert (again["psn"], again["a"]) == (lost["psn"], 1) and again["evi"] != lost["evi"]
        assert again["ext"]["data"] == lost["ext"]["data"] and again["laddr"] == lost["laddr"] and again["plen"] == lost["plen"]
        assert b.kinds(Kind.NACK)[0]["path"]["planes"][lost["plane"]]["skip"] == 1 << lost["evi"] % 2
        b.nack(lost, NackReason.TRIMMED)  # the first copy's, late
        b.nack(again, NackReason.TRIMMED_LASTHOP)
        await b.run(lambda: len(b.sent) == 7 and not b.departs)
        assert b.sent[6]["psn"] == lost["psn"] and b.drops == [spec.Drop.NACK_IGNORED]
        assert b.kinds(Kind.NACK)[2]["path"]["planes"][again["plane"]]["skip"] == b.kinds(Kind.NACK)[1]["path"]["planes"][again["plane"]]["skip"]
        await answer(b)
        b.nack(b.sent[0], NackReason.TRIMMED)  # of an acknowledged PSN
        await b.run(lambda: len(b.drops) == 2)
        assert [c["status"] for c in b.completions] == [0, 0]
        at_rest(b)

    run(test, BOTH)


def test_resource_nack_holds_retransmissions() -> None:
    """A resource NACK holds retransmissions, not new data, for nack_retx_time; repeated NACKs of the head count once per T (MRC-REQ-086, 093)."""
    async def test(b: Bench) -> None:
        await b.connect(timer_exp=20, glob={**FAR, "nack_retx_time": 100})
        await b.post(0, 3000)
        await b.run(lambda: len(b.sent) == 3 and not b.departs)
        b.nack(b.sent[0], NackReason.NO_PKT_BUFFER)
        await b.run(lambda: b.kinds(Kind.NACK))
        start = b.tick
        await b.post(0, 500)
        await b.run(lambda: len(b.sent) == 4)
        assert not b.sent[3]["rtx"]
        await b.run(lambda: len(b.sent) == 5 and not b.departs)
        assert b.sent[4]["rtx"] and 95 <= b.sent[4]["tick"] - start <= 130
        b.nack(b.sent[4], NackReason.PSN_OOR_WINDOW)
        await b.run(lambda: len(b.sent) == 6 and not b.departs)
        assert b.sent[5]["psn"] == b.sent[0]["psn"] and b.records[-1]["ctx"]["retry"] == 1
        await answer(b)
        at_rest(b)

    run(test)


def test_evidence_judges_only_what_it_covers() -> None:
    """A hole below a later arrival is lost after reo_wnd, once; a loss that is acknowledged before its resend is cancelled (MRC-REQ-068, 069, 084; R-16)."""
    async def test(b: Bench) -> None:
        await b.connect(active=2, timer_exp=20, glob={**FAR, "reo_wnd": 60}, sq_psn=0xFFFFFA)
        await b.post(0, 8 * 1024)
        await b.run(lambda: len(b.sent) == 8 and not b.departs)
        await b.quiet(320)
        await b.post(0, 1024)
        await b.run(lambda: len(b.sent) == 9 and not b.departs)
        early, late = b.sent[4], b.sent[8]
        size = packet_size(early)
        cack = b.sent[0]["psn"]
        b.room = 0
        # PSNs 1 and 3 are missing; PSN 4 arrived, sent too close to them to prove anything.
        b.sack(0, cack, cause=early, rcvd=5 * size, bitmap=0b1010)
        await b.rest()
        assert not b.kinds(Kind.JUDGE)
        b.sack(0, cack, cause=late, rcvd=7 * size, bitmap=0b1111_1010)
        await b.rest()
        assert [r["body"]["psn"] for r in b.kinds(Kind.JUDGE)] == [tx["psn"] for tx in (b.sent[1], b.sent[3])]
        bad = {r["body"]["evi"] for r in b.kinds(Kind.JUDGE) if r["body"]["proved"]}
        assert bad, "the losses are proved: nothing later was acknowledged on those EVs"
        # The first of them arrives after all before it is sent again.
        b.sack(0, b.sent[2]["psn"], cause={**late, "stamp": 0}, rcvd=8 * size, bitmap=0b11_1110)
        await b.rest()
        cancelled = [r["body"]["psn"] for r in b.kinds(Kind.RETIRE) if r["body"]["was_lost"]]
        assert cancelled == [b.sent[1]["psn"]]
        b.room = 3
        await b.run(lambda: len(b.sent) == 10 and not b.departs)
        await b.quiet(150)
        assert len(b.sent) == 10 and b.sent[9]["psn"] == b.sent[3]["psn"] and b.sent[9]["evi"] != b.sent[3]["evi"]
        await answer(b)
        assert len(b.completions) == 2
        at_rest(b)

    run(test, BOTH)


def test_timeout_backs_off_and_ends_the_qp() -> None:
    """Expiries at T, T, 2T, 4T; the head alone is resent on another EV; then RETRY_EXCEEDED for the first message, the others flushed, the
    responder told (MRC-REQ-059, 065, 090 to 093)."""
    async def test(b: Bench) -> None:
        await b.connect(timer_exp=5, linear_cnt=2, exp_cnt=2, glob=FAR)
        start = b.tick
        for i in range(3):
            await b.post(0, 1500, wr_id=i)
        await b.run(lambda: len(b.completions) == 3, 12000)
        steps = b.kinds(Kind.TIMEOUT)
        waits = [b_["tick"] - a for a, b_ in zip([start] + [r["tick"] for r in steps], steps)]
        assert [round(w / 256) for w in waits] == [1, 1, 2, 4], waits
        again = [tx for tx in b.sent if tx["rtx"]]
        assert {tx["psn"] for tx in again} == {b.sent[0]["psn"]} and len(again) == 3 and again[0]["evi"] != b.sent[0]["evi"]
        assert [c["status"] for c in b.completions] == [WcStatus.RETRY_EXCEEDED, WcStatus.FLUSHED, WcStatus.FLUSHED] and b.told == [0]
        assert await b.post(0, 10, wr_id=7) == OK
        await b.run(lambda: len(b.completions) == 4)
        assert b.completions[3]["wr_id"] == 7 and b.completions[3]["status"] == WcStatus.FLUSHED
        b.sack(0, b.sent[0]["psn"])
        await b.run(lambda: b.drops == [spec.Drop.QP_ERROR])

    run(test, tick_div=2)


def test_probes() -> None:
    """Silence brings a tail probe, its answer an ACK; an ASSUMED_BAD EV is probed once per T and returns after three answers (MRC-REQ-083, 095 to 099, 150)."""
    async def test(b: Bench) -> None:
        await b.connect(active=1, timer_exp=4, linear_cnt=7, exp_cnt=25, glob={"probe_time": 60, "reo_wnd": 20})
        await b.post(0, 1024)
        await b.run(lambda: len(b.sent) == 2 and not b.departs)
        data, probe = b.sent
        assert probe["opcode"] == Opcode.PROBE and probe["ext"]["probe"]["probe_id"] == 0
        b.sack(0, (data["psn"] - 1) & 0xFFFFFF, cause=probe, probe_id=0, rcvd=0)
        await b.run(lambda: b.kinds(Kind.JUDGE), what="evidence of the probe's answer against the lost head")
        bad = data["evi"]
        assert b.kinds(Kind.JUDGE)[0]["path"]["planes"][data["plane"]]["bad"] == 1 << bad % 2
        await b.run(lambda: any(tx["rtx"] for tx in b.sent) and not b.departs)
        await answer(b)
        answers = 0
        while answers < 3:
            await b.run(lambda: any(tx["opcode"] == Opcode.PROBE and tx["ext"]["probe"]["probe_id"] >> 15 and "done" not in tx for tx in b.sent)
                        and not b.departs, 6000, "an EV probe")  # fmt: skip
            tx = next(tx for tx in b.sent if tx["opcode"] == Opcode.PROBE and tx["ext"]["probe"]["probe_id"] >> 15 and "done" not in tx)
            assert tx["evi"] == bad
            tx["done"] = True
            answers += 1
            b.sack(0, data["psn"], cause=tx, probe_id=tx["ext"]["probe"]["probe_id"], rcvd=packet_size(data))
        await b.run(lambda: b.records[-1]["path"]["planes"][data["plane"]]["bad"] == 0, 200)
        await b.run(lambda: not b.records[-1]["ctx"]["bad_probe_on"], 3000, "the end of the EV probes")
        count = len(b.sent)
        await b.quiet(600)
        assert len(b.sent) == count and len(b.completions) == 1
        at_rest(b)

    run(test)


def test_nak_ends_its_message() -> None:
    """NAK 0x62 of the second message: the first is still unfinished and flushed, the second ends with the cause (MRC-REQ-065, 088)."""
    async def test(b: Bench) -> None:
        await b.connect(timer_exp=20, glob=FAR)
        for i in range(3):
            await b.post(0, 2048, wr_id=i)
        await b.run(lambda: len(b.sent) == 6 and not b.departs)
        b.ack(0, b.sent[2]["psn"], 0x62)
        await b.run(lambda: len(b.completions) == 3)
        assert [c["status"] for c in b.completions] == [WcStatus.FLUSHED, WcStatus.REMOTE_ACCESS, WcStatus.FLUSHED] and b.told == [0]

    run(test)


def test_departures_and_memory_errors() -> None:
    """A dropped frame keeps its old tick, a late report does not touch a newer copy, a read error ends the QP (MRC-REQ-076, 077)."""
    async def test(b: Bench) -> None:
        b.auto_depart = False
        await b.connect(timer_exp=20, glob=FAR)
        await b.post(0, 3072)
        await b.run(lambda: len(b.sent) == 3)
        b.depart(b.sent[0], dropped=1)
        b.depart(b.sent[1])
        await b.run(lambda: len(b.kinds(Kind.DEPART)) == 2)
        b.nack(b.sent[1], NackReason.TRIMMED)
        await b.run(lambda: len(b.sent) == 4)
        b.depart(b.sent[1])
        await b.run(lambda: len(b.kinds(Kind.DEPART)) == 3)
        assert [r["body"]["applied"] for r in b.kinds(Kind.DEPART)] == [0, 1, 0]
        b.depart(b.sent[3], read_error=1)
        await b.run(lambda: b.completions)
        assert b.completions[0]["status"] == WcStatus.LOCAL_MEMORY and b.told == [0]

    run(test)


def test_reset_waits_and_clears() -> None:
    """RESET waits for the QP's departures while the other QP goes on; afterwards the QP starts clean (MRC-REQ-056, 058; O-08)."""
    async def test(b: Bench) -> None:
        b.auto_depart = False
        await b.connect(0, timer_exp=5, linear_cnt=7, exp_cnt=25, glob={"probe_time": 100})
        await b.connect(1, timer_exp=20)
        await b.post(0, 20 * 1024, imm=1)
        await b.run(lambda: len(b.sent) == 20)
        b.depart(b.sent[0])
        b.nack(b.sent[0], NackReason.NO_RESOURCE)
        await b.run(lambda: b.kinds(Kind.NACK))
        statuses = len(b.statuses)
        b.cmds.append({"op": int(Command.MODIFY), "qp": 0, "index": 0, "data": int(QpState.RESET)})
        await b.quiet(1500)
        held = [tx for tx in b.sent[1:] if tx["qp"] == 0]
        for tx in held:
            b.depart(tx)
            if len(b.departs) == 9:
                b.ack(1, 0)  # another QP is served meanwhile
        await b.run(lambda: len(b.statuses) > statuses, 2000, "the end of RESET")
        ctx = b.records[-1]["ctx"]
        assert b.statuses[-1] == OK and not any(v for v in ctx.values() if isinstance(v, int)), ctx
        assert b.records[-1]["path"]["planes"][0] == {"active": 0, "good": 0, "skip": 0, "bad": 0, "full": 0, "ptr": 0, "r": 0}
        b.auto_depart = True
        b.sent.clear()
        await b.connect(0, sq_psn=5, path_credit=3, timer_exp=20)
        await b.post(0, 6 * 1024)
        await b.run(lambda: len(b.sent) == 6)
        assert [tx["psn"] for tx in b.sent] == list(range(5, 11)) and not any(tx["rtx"] for tx in b.sent)
        await answer(b)
        assert [c["status"] for c in b.completions] == [0]
        at_rest(b)

    run(test)


def test_host_and_peer_errors() -> None:
    """MODIFY to ERROR and an error of the responder end the QP without an echo; a second request is ignored (MRC-REQ-057)."""
    async def test(b: Bench) -> None:
        await b.connect(0, timer_exp=20)
        await b.connect(1, timer_exp=20)
        await b.post(0, 100, wr_id=1)
        await b.post(1, 100, wr_id=2)
        assert await b.modify(0, QpState.ERROR) == OK
        b.peer_errors.extend([0, 1, 1])
        await b.run(lambda: len(b.completions) == 2 and not b.peer_errors)
        assert [c["status"] for c in b.completions] == [WcStatus.LOCAL_QP_OPERATION] * 2 and not b.told
        assert len(b.kinds(Kind.QP_ERROR)) == 2
        assert await b.modify(0, QpState.ERROR) == OK and await b.modify(0, QpState.INIT) != OK

    run(test)


def test_port_down_and_fallback() -> None:
    """A plane that goes down leaves the selection at once; with no GOOD EV left on a plane that is up, SKIP EVs are used (MRC-REQ-141, 155)."""
    async def test(b: Bench) -> None:
        await b.connect(0, active=2, timer_exp=20, glob=FAR)
        b.up = 0b01
        await b.run(lambda: b.records[-1]["kind"] == Kind.PORT)
        await b.post(0, 4 * 1024)
        await b.run(lambda: len(b.sent) == 4 and not b.departs)
        assert {tx["plane"] for tx in b.sent} == {0}
        b.nack(b.sent[0], NackReason.TRIMMED)
        b.nack(b.sent[1], NackReason.TRIMMED)
        await b.run(lambda: len(b.sent) == 6 and not b.departs)
        assert {tx["plane"] for tx in b.sent} == {0} and any(r["body"]["fallback"] for r in b.kinds(Kind.SEND))
        await answer(b)
        assert len(b.completions) == 1
        assert await b.command(Command.EV_STATE, 0, 0, layout=fixed.EV_STATE_CONFIG, denied=1) == OK
        at_rest(b)

    run(test, BOTH)
