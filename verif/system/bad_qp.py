"""Sound frames that the QP's checks, its PSNs or its history refuse: unknown QP, wrong state, strangers, windows, forged feedback.

Covers MRC-REQ-078..088, 190..196, 221, 241; failure modes R-01, R-05, R-09, R-16.
"""

from __future__ import annotations

from model.config import QpConfig
from model.spec import Command, Drop, Dscp, MFlag, NackReason, Opcode, QpState
from verif.system.env import A, B, System
from verif.system.frames import Intruder, good
from verif.system.scenarios import scenario

ALL = (Opcode.WRITE_FIRST, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM, Opcode.PROBE, Opcode.SACK, Opcode.NACK, Opcode.ACK)
FEEDBACK = (Opcode.SACK, Opcode.NACK, Opcode.ACK)
TRAFFIC = (Drop.EV_UNMATCHED, Drop.ACK_IGNORED, Drop.NACK_IGNORED, Drop.DUPLICATE)


@scenario()
async def unknown_qp(s: System) -> None:
    """QP numbers below, above and far from ours, the reserved ones too, with every opcode; what else is wrong with the frame does not count."""
    await s.connect(psn_a=0x500)
    await good(s)
    x = Intruder(s)
    base = s.p.qpn_base
    for number in (0, 1, 2, base - 1, base + s.p.qps, base + 0x10000, base ^ 1 << 23, 0xFFFFFF):
        for opcode in ALL:
            x.send(x.frame(opcode, dest_qp=number, psn=0x501), Drop.UNKNOWN_QP)
    x.send(x.frame(dest_qp=2, psn=0x501, pkey=1, src_ip=5), Drop.UNKNOWN_QP)
    x.send(x.frame(dest_qp=2, psn=0x501, dscp=int(Dscp.TRIMMED), trimmed=1), Drop.UNKNOWN_QP)
    await x.check()
    await good(s)
    await x.check()


@scenario()
async def wrong_states(s: System) -> None:
    """Every opcode to a QP in RESET, INIT, RTR (feedback only) and ERROR; RESET again, then it is connected and works."""
    await s.connect(0)
    x = Intruder(s)

    async def burst(cause: Drop, opcodes: tuple[Opcode, ...] = ALL) -> None:
        for opcode in opcodes:
            x.send(x.frame(opcode, qp=1), cause)
        x.send(x.frame(opcodes[-1], qp=1, pkey=1, src_ip=7), cause)  # the state is looked at first
        if opcodes == ALL:
            x.send(x.frame(qp=1, dscp=int(Dscp.TRIMMED), trimmed=1), cause)
        await x.check(quiet=400)

    async def modify(state: QpState) -> None:
        s.queue(B, Command.MODIFY, 1, data=int(state))
        await s.settle()

    await burst(Drop.QP_STATE)
    await modify(QpState.INIT)
    await burst(Drop.QP_STATE)
    s.queue(B, Command.SET_QP, 1, data=QpConfig())
    await modify(QpState.RTR)
    await burst(Drop.QP_STATE, FEEDBACK)
    await modify(QpState.ERROR)
    await s.quiet(400)  # the QP_ERROR steps follow the command
    await burst(Drop.QP_ERROR)
    await modify(QpState.RESET)
    await burst(Drop.QP_STATE)
    await good(s, 0)
    await s.connect(1)
    await good(s, 1)
    await x.check()
    s.wanted_kinds |= {"requestor.qp_error", "responder.qp_error"}


@scenario()
async def strangers(s: System) -> None:
    """A source that is none of the peer's planes, a destination that is none of ours, the other IP version, a P_Key that is not the QP's: all
    opcodes. What the peer's other plane sends is taken (a probe), whatever MAC addresses it has."""
    await s.connect(0, psn_a=1)
    await s.connect(1, psn_a=1, ipv4=1)
    await good(s, 0)
    await good(s, 1)
    x = Intruder(s)
    for ipv4 in (False, True):
        qp, planes = int(ipv4), s.p.planes
        peer, us = s.ip(A, ipv4), s.ip(B, ipv4)
        for opcode in ALL:
            for source in (peer + planes, peer - 1, peer ^ 1 << 31, us, 0, peer ^ 0x80):
                x.send(x.frame(opcode, qp=qp, psn=2, ipv4=ipv4, src_ip=source), Drop.ADDRESS)
            for destination in (us + planes, us - 1, us ^ 1 << 8, peer, us ^ 1 << 31):
                x.send(x.frame(opcode, qp=qp, psn=2, ipv4=ipv4, dst_ip=destination), Drop.ADDRESS)
            x.send(x.frame(opcode, qp=1 - qp, psn=2, ipv4=ipv4), Drop.ADDRESS)
            for pkey in (0x7FFF, 0, 0xFFFE):
                x.send(x.frame(opcode, qp=qp, psn=2, ipv4=ipv4, pkey=pkey), Drop.PKEY)
        if not ipv4:
            x.send(x.frame(psn=2, src_ip=peer ^ 1 << 127), Drop.ADDRESS)
            x.send(x.frame(psn=2, dst_ip=us ^ 1 << 64), Drop.ADDRESS)
        x.send(x.frame(qp=qp, psn=2, ipv4=ipv4, src_ip=0x01020304, pkey=1), Drop.ADDRESS)  # the address is looked at first
        await x.check()
        probe = x.packet(Opcode.PROBE, qp=qp, ipv4=ipv4, src_ip=peer + planes - 1, dst_ip=us + planes - 1, smac=0x02DEAD000001, dmac=0x02DEAD000002)
        x.send(probe, None, Drop.EV_UNMATCHED)
        x.expect(None, Drop.ACK_IGNORED)
        await x.check()
    for qp in (0, 1):
        await good(s, qp)
    await x.check()


@scenario()
async def psns_wrong(s: System) -> None:
    """PSNs that are ancient (silent), beyond the window (NACK) and behind (SACK and the ACK again), trimmed or not; the start is at the wrap of
    PSNs (S-01)."""
    await s.connect(psn_a=0xFFFFFF)
    await good(s)  # PSN 0xFFFFFF: 0 is expected
    x = Intruder(s)
    for trimmed in (0, 1):
        more = {"dscp": int(Dscp.TRIMMED), "trimmed": 1} if trimmed else {}
        for distance in (0x8001, 0x8002, 0x10000, 0x7FFFFF, 0x800000):
            x.send(x.frame(psn=-distance & 0xFFFFFF, **more), Drop.ANCIENT)
        for distance in (s.p.window, s.p.window + 1, 0x8000, 0x7FFFFF):
            x.send(x.frame(psn=distance, **more), Drop.OUT_OF_WINDOW, Drop.NACK_IGNORED)
        await x.check()
        for n, distance in enumerate((1, 2, 64, 0x7FFF, 0x8000)):
            # SACK and ACK come back; A knows neither the EV nor an open message. One at a time: ACKs of one QP may merge.
            x.send(x.frame(psn=-distance & 0xFFFFFF, **more), Drop.DUPLICATE, Drop.EV_UNMATCHED)
            x.expect(None, Drop.ACK_IGNORED)
            await x.check(quiet=800 if n else 1200)
    await good(s)
    await x.check()
    s.wanted_kinds |= {"responder.emit_nack", "responder.emit_ack", "requestor.nack"}


@scenario()
async def window_silent(s: System) -> None:
    """With oor_silent a PSN beyond the window is dropped without a word; with trim_nack off a trimmed packet is TRIM_IGNORED."""
    await s.connect(psn_a=7, glob={"oor_silent": 1}, trim_nack=0)
    await good(s)
    x = Intruder(s)
    for distance in (s.p.window, 0x7FFFFF):
        x.send(x.frame(psn=8 + distance), Drop.OUT_OF_WINDOW)
    for dscp, trimmed in ((Dscp.TRIMMED, 1), (Dscp.TRIMMED_LASTHOP, 2)):
        x.send(x.frame(psn=8, dscp=int(dscp), trimmed=trimmed), Drop.TRIM_IGNORED)
        x.send(x.frame(psn=8 + s.p.window, dscp=int(dscp), trimmed=trimmed), Drop.OUT_OF_WINDOW)
    await x.check()
    await good(s)
    await x.check()


def _nothing_sent(x: Intruder, unack: int) -> None:
    """Feedback to a requestor that has nothing outstanding; ``unack``: the last PSN that it sent."""
    for ahead in (1, 2, 0x7FFF, 0x7FFFFF, -0x8001):
        x.send(x.frame(Opcode.SACK, psn=unack, cack_psn=unack + ahead & 0xFFFFFF, rcvd_bytes=0), Drop.SACK_RANGE)
    for ahead in (0, -1, -0x8000):
        x.send(x.frame(Opcode.SACK, psn=unack, cack_psn=unack + ahead & 0xFFFFFF, mpr=1), Drop.EV_UNMATCHED)  # old, so harmless
    x.send(x.frame(Opcode.SACK, cack_psn=unack, pr=1, probe_id=0x1234), Drop.EV_UNMATCHED)
    x.send(x.frame(Opcode.SACK, cack_psn=unack, pr=1, probe_id=0x8001, mflag=int(MFlag.ALWAYS_SKIP)), Drop.EV_UNMATCHED)
    for reason in (*NackReason, 0, 0x33, 0xFF):
        x.send(x.frame(Opcode.NACK, psn=unack, nack_reason=int(reason)), Drop.NACK_IGNORED)
        x.send(x.frame(Opcode.NACK, psn=unack + 1 & 0xFFFFFF, nack_reason=int(reason)), Drop.NACK_IGNORED)
    for syndrome in (0x1F, 0x61, 0x62, 0x63, 0x60, 0x20, 0, 0xFF):
        for psn in (unack, unack + 1 & 0xFFFFFF, 0):
            x.send(x.frame(Opcode.ACK, psn=psn, syndrome=syndrome), Drop.ACK_IGNORED)


@scenario()
async def feedback_forged(s: System) -> None:
    """SACK, NACK and ACK that tell of what was never sent, or of what is long done, or of the wrong copy: nothing moves, each is counted.

    First with nothing sent, then with three packets outstanding (the fabric loses all data), then when they are acknowledged.
    """
    start = 0xFFFFFE
    await s.connect(psn_a=start, mtu=0)
    x = Intruder(s, A)
    _nothing_sent(x, start - 1)
    x.send(x.frame(Opcode.SACK, cack_psn=start - 1, rcvd_bytes=1), Drop.SACK_FORGED)
    x.send(x.frame(Opcode.SACK, cack_psn=start - 1, rcvd_bytes=0x7FFFFF), Drop.SACK_FORGED)
    await x.check()

    s.native.set("drop", 1_000_000, A)
    message = s.write(A, 600)
    await s.until(lambda: s.faults()["dropped"] == 3, what="three lost packets")
    last, all_bytes = start + 2 & 0xFFFFFF, 3 * (8 + 12 + 24 + 4 + 40) + 600
    for ahead in (1, 0x7000):
        x.send(x.frame(Opcode.SACK, cack_psn=last + ahead & 0xFFFFFF), Drop.SACK_RANGE)
    for more in (1, 0x10000, 0x7FFFFF):
        x.send(x.frame(Opcode.SACK, cack_psn=start - 1, rcvd_bytes=(all_bytes + 255 >> 8) + more), Drop.SACK_FORGED)
    for reason in NackReason:
        x.send(x.frame(Opcode.NACK, psn=start, nack_reason=int(reason)), Drop.NACK_IGNORED)  # not its EV
        for plane in range(s.p.planes):  # its EV or another's, but not the timestamp of this copy
            tick = await s.read(A, 0x14)
            x.send(x.frame(Opcode.NACK, psn=start, nack_reason=int(reason), entropy=s.ev_value(A, 0, plane * s.p.evs),
                           echo_timestamp=(tick + 0x4000) & 0xFFFF or 1), Drop.NACK_IGNORED)  # fmt: skip
        x.send(x.frame(Opcode.NACK, psn=last + 1 & 0xFFFFFF, nack_reason=int(reason)), Drop.NACK_IGNORED)  # not sent
    for psn in (start - 1, start, start + 1 & 0xFFFFFF, last + 1 & 0xFFFFFF, start ^ 0x800000):  # before, inside, behind the message
        x.send(x.frame(Opcode.ACK, psn=psn), Drop.ACK_IGNORED)
    for syndrome in (0x61, 0x62, 0x63):
        for psn in (start - 1, last + 1 & 0xFFFFFF, start ^ 0x800000):
            x.send(x.frame(Opcode.ACK, psn=psn, syndrome=syndrome), Drop.ACK_IGNORED)
    x.send(x.frame(Opcode.ACK, psn=last, syndrome=0x60), Drop.ACK_IGNORED)
    await x.check(quiet=400)
    assert not s.completions, s.completions

    s.native.set("drop", 0, A)
    await s.done()
    assert [c.wr_id for c in s.completions] == [message.wr_id]
    await s.quiet(1200)
    before = {cause: await s.read(A, 0x200 + 4 * cause) - x.wanted[A][cause] for cause in TRAFFIC}
    for cause, count in before.items():
        x.expect(cause, count=count)  # what the recovery from the loss brought
    _nothing_sent(x, last)
    x.send(x.frame(Opcode.SACK, cack_psn=last, rcvd_bytes=(all_bytes + 255 >> 8) + 1), Drop.SACK_FORGED)
    await x.check()
    await good(s)
    await x.check()


@scenario()
async def probes(s: System) -> None:
    """Probes with any id are answered by a SACK each, before and after a message has ended; a CE mark shows in it; none consumes a PSN."""
    await s.connect(psn_a=9)
    x = Intruder(s)
    for probe_id in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
        x.send(x.frame(Opcode.PROBE, probe_id=probe_id, psn=0xABCDEF, ecn=3 if probe_id & 1 else 2, a=1, rtx=1), None, Drop.EV_UNMATCHED)
    await x.check()
    await good(s)
    for probe_id in (2, 0x8002):
        x.send(x.frame(Opcode.PROBE, probe_id=probe_id), None, Drop.EV_UNMATCHED)
        x.expect(None, Drop.ACK_IGNORED)
        await x.check()
    await good(s)
    await x.check()
