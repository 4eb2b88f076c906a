"""Data packets that the packet checks refuse: a transport NAK, nothing written, both QPs in ERROR; after RESET they work again.

Each bad packet takes the place of one that the fabric loses, so that its NAK meets a message of the sender: the status with which that message
completes shows which NAK it was. Covers MRC-REQ-200..204, 240, 241, 253, 088, 065; failure modes O-08, F-05, I-03.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from model.config import Region
from model.spec import Command, Drop, Opcode, WcStatus
from verif.system.env import RKEY, A, B, System
from verif.system.frames import VICTIM, Intruder, good, restart
from verif.system.scenarios import scenario

MTU = 256
FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = (Opcode(code) for code in range(0xC6, 0xCC))


async def _refused(s: System, x: Intruder, packets: Iterable[tuple[Opcode, dict[str, Any]]], status: WcStatus) -> int:
    """Each packet, on a connection of its own, is NAKed: the message whose PSN it took completes with ``status``, the one behind it is flushed.
    Then data finds the QP in ERROR, and a probe is answered with the same NAK. Returns how many packets it were."""
    count = 0
    for opcode, fields in packets:
        if count:
            await restart(s, psn_a=0x1000, mtu=0, receives=0)
        count += 1
        await good(s)
        s.native.set("drop", 1_000_000, A)
        before = s.faults()["dropped"]
        s.write(A, 100, status=status)
        s.write(A, 100, status=WcStatus.FLUSHED)
        await s.until(lambda before=before: s.faults()["dropped"] == before + 2, what="two lost packets")
        x.send(x.frame(opcode, psn=0x1001, **fields), Drop.NAKED)
        await s.done(20_000)
        if count % 4 == 1:
            x.send(x.frame(psn=0x1002), Drop.QP_ERROR)
            x.send(x.frame(Opcode.PROBE), None, Drop.QP_ERROR)  # the NAK once more, for a QP that is in ERROR too
            x.send(x.frame(Opcode.SACK, psn=0x1000, cack_psn=0x1000), Drop.QP_ERROR)
            await x.check()
        s.native.set("drop", 0, A)
    await restart(s, psn_a=0x1000, mtu=0, receives=0)
    await good(s)
    await x.check()
    s.wanted_kinds |= {"requestor.qp_error", "responder.qp_error", "responder.emit_ack", "requestor.ack"}
    return count


def _sized(payload: int, total: int, **more: Any) -> dict[str, Any]:
    return {"payload": bytes(n & 0xFF for n in range(payload)), "dmalen": total, **more}


@scenario()
async def sound_frame(s: System) -> None:
    """What the other scenarios mutate is taken when it is left alone: the victim is written. (Its sender knows nothing of it: SACK_RANGE, and an
    ACK for no message.)"""
    await s.connect(psn_a=0x1000, mtu=0)
    await good(s)
    x = Intruder(s)
    x.send(x.frame(psn=0x1001, a=1), None, Drop.SACK_RANGE)
    x.expect(None, Drop.ACK_IGNORED)
    await s.quiet(1200)
    written = s.native.read(B, x.victim, 38)
    assert written == bytes(range(37)) + b"\xa5", written.hex()
    s.native.write(B, x.victim, b"\xa5" * 37)
    await x.check()
    await restart(s, psn_a=5, mtu=0)
    await good(s)
    await x.check()
    s.native.write(B, x.victim, bytes(range(37)))  # as the golden memory has it


@scenario()
async def lengths_wrong(s: System) -> None:
    """First, Middle, Last and Only whose payload, DMALen, MTU and pad disagree, DMALen 0: NAK 0x61."""
    await s.connect(psn_a=0x1000, mtu=0, receives=0)
    x = Intruder(s)
    packets = [
        (ONLY, _sized(40, 40, pad_error=1)), (ONLY, _sized(40, 40, pad_error=3)), (ONLY, _sized(37, 37, pad_error=3)),
        (ONLY, _sized(40, 37)), (ONLY, _sized(37, 40)),
        (ONLY, _sized(0, 0)), (ONLY, _sized(4, 0)), (ONLY, _sized(0, 4)),
        (ONLY, _sized(MTU + 4, MTU + 4)), (ONLY, _sized(MTU, MTU + 4)), (ONLY, _sized(40, 1 << 31)),
        (ONLY_IMM, _sized(40, 0)), (ONLY_IMM, _sized(MTU + 1, MTU + 1)), (ONLY_IMM, _sized(40, 41)),
        (FIRST, _sized(MTU, MTU)), (FIRST, _sized(MTU, 1)), (FIRST, _sized(MTU, 0)), (FIRST, _sized(MTU - 4, 2 * MTU)),
        (FIRST, _sized(MTU + 4, 2 * MTU)), (FIRST, _sized(0, 2 * MTU)),
    ]  # fmt: skip
    assert await _refused(s, x, packets, WcStatus.REMOTE_INVALID_REQUEST) == x.wanted[B][Drop.NAKED] == 20


@scenario()
async def lengths_wrong_later(s: System) -> None:
    """The same for Middle and Last, and with a wrong R_Key as well: the length is looked at first, NAK 0x61."""
    await s.connect(psn_a=0x1000, mtu=0, receives=0)
    x = Intruder(s)
    packets = [
        (MIDDLE, _sized(MTU - 1, 3 * MTU)), (MIDDLE, _sized(MTU + 1, 3 * MTU)), (MIDDLE, _sized(0, 3 * MTU)), (MIDDLE, _sized(MTU, 0)),
        (LAST, _sized(MTU, MTU)), (LAST, _sized(8, 8)), (LAST, _sized(8, 0)), (LAST, _sized(8, MTU + 9)), (LAST, _sized(9, MTU + 8)),
        (LAST, _sized(0, 2 * MTU)), (LAST, _sized(MTU + 4, 2 * MTU + 4)), (LAST_IMM, _sized(8, MTU + 7)), (LAST_IMM, _sized(8, MTU)),
        (LAST, _sized(MTU, 2 * MTU, pad_error=2)), (ONLY, _sized(37, 40, rkey=0xDEAD)), (FIRST, _sized(MTU, MTU, va=0)),
    ]  # fmt: skip
    assert await _refused(s, x, packets, WcStatus.REMOTE_INVALID_REQUEST) == 16


@scenario()
async def too_many_wimms(s: System) -> None:
    """A WriteIMM max_wimm and more ahead of the next, or behind it: NAK 0x61, though its R_Key be wrong. RQMSN of other packets is ignored."""
    await s.connect(psn_a=0x1000, mtu=0, receives=0)
    x = Intruder(s)
    most = s.p.max_wimm
    packets: list[tuple[Opcode, dict[str, Any]]] = [
        (ONLY_IMM, {"rqmsn": most}), (ONLY_IMM, {"rqmsn": 0xFFFF}), (ONLY_IMM, {"rqmsn": 0x8000}), (ONLY_IMM, {"rqmsn": most + 1, "rkey": 1}),
        (LAST_IMM, _sized(8, MTU + 8, rqmsn=most)),
    ]  # fmt: skip
    assert await _refused(s, x, packets, WcStatus.REMOTE_INVALID_REQUEST) == 5


@scenario()
async def access_wrong(s: System) -> None:
    """R_Keys of no region, of another, stale; below, above and across the end of the region; a VA that wraps; no write right: NAK 0x62."""
    await s.connect(psn_a=0x1000, mtu=0, receives=0)
    x = Intruder(s)
    mine = RKEY + 256 * B

    def region(index: int, **fields: int) -> int:
        at = {"rkey": 0xABC0_0000 + index, "va": x.victim, "length": VICTIM, "host": x.victim, "write": 1, "valid": 1} | fields
        s.queue(B, Command.SET_REGION, index=index, data=Region(**at))
        return at["rkey"]

    small, read_only, invalid = region(1, va=0x1000, length=64), region(2, write=0), region(3, valid=0)
    top = region(4, va=2**64 - 16, length=64)  # no driver writes such a region: its end wraps
    key_of_other_slot = region(5, rkey=0xABC0_0006)
    packets = [
        (ONLY, {"rkey": mine + 7}), (ONLY, {"rkey": mine + 8}), (ONLY, {"rkey": mine ^ 1 << 31}), (ONLY, {"rkey": 0}),
        (ONLY, {"rkey": small, "va": 0xFFF}), (ONLY, {"rkey": small, "va": 0x1000 + 64}), (ONLY, {"rkey": small, "va": 0x1000 + 64 - 36}),
        (ONLY, {"rkey": small, "va": 0}), (ONLY, {"rkey": small, "va": 2**64 - 1}), (ONLY, {"rkey": small, "va": 2**64 - 36}),
        (ONLY, {"rkey": small, "va": 1 << 32 | 0x1000}), (FIRST, _sized(MTU, 2 * MTU, rkey=small, va=0x1000)),
        (ONLY, {"rkey": read_only}), (ONLY, {"rkey": invalid}), (ONLY, {"rkey": key_of_other_slot}),
        (ONLY, {"rkey": top, "va": 2**64 - 8}), (ONLY, {"rkey": top, "va": 2**64 - 36}), (ONLY_IMM, {"rkey": read_only}),
    ]  # fmt: skip
    assert await _refused(s, x, packets, WcStatus.REMOTE_ACCESS) == 18


@scenario()
async def access_refused_to_a_peer(s: System) -> None:
    """The same from a real sender: a message with a wrong R_Key between good ones completes with REMOTE_ACCESS, those behind it are flushed, what
    came before it is in place; the other QP goes on all the while."""
    await s.connect(0)
    await s.connect(1)
    for _ in range(3):
        s.write(A, 3000, 0)
        s.write(A, 3000, 1)
        s.write(B, 2000, 1)
    await s.done()
    s.write(A, 2500, 0, rkey=0x5EED_0107, status=WcStatus.REMOTE_ACCESS)
    for _ in range(3):
        s.write(A, 700, 0, imm=5, status=WcStatus.FLUSHED)
        s.write(A, 5000, 1)
        s.write(B, 5000, 1)
    s.imms.clear()  # none of them arrives
    await s.done()
    assert [c.status for c in s.completions if (c.nic, c.qp, c.recv) == (A, 0, 0)] == [0, 0, 0, WcStatus.REMOTE_ACCESS, 1, 1, 1]
    await restart(s)
    await good(s)
    await good(s, 1)
    counters = await s.counters(B)
    assert counters["drop_naked"] == 1, counters


@scenario()
async def no_receive_entry(s: System) -> None:
    """A WriteIMM that meets an empty receive queue: NAK 0x63, REMOTE_OPERATION; its bytes are in place, but nobody is told of success (O-02)."""
    await s.connect(receives=1)
    s.write(A, 100, imm=1)
    await s.done()
    s.write(A, 100, imm=2, status=WcStatus.REMOTE_OPERATION)
    s.write(A, 100, status=WcStatus.FLUSHED)
    s.imms.clear()
    await s.done()
    assert [c.imm for c in s.completions if c.recv and c.nic == B] == [1]
    s.write(B, 8, status=WcStatus.FLUSHED)  # the QP is in ERROR as a sender too
    await s.done()
    await restart(s)
    s.write(A, 100, imm=3)
    await s.done()
