"""Directed scenarios: message sizes at every MTU, PSN wrap, alignments, IPv4, the EV swap bit."""

from __future__ import annotations

from model.config import QpConfig
from model.end_packets import wire_config
from model.spec import END_OPCODES, IMM_OPCODES, MTUS, Command, Kind, Opcode, PostStatus, QpState, WcStatus
from verif.system.env import A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import Watch, after, need

START = 0xFFFFF0


async def sizes(s: System) -> None:
    """Every size around the borders of a packet, from PSN 0xFFFFF0 on: segments, opcodes and PSNs as computed here, nothing resent.

    MRC-REQ-001, 060, 063, 107 and S-01, S-04, F-01, I-03, I-04, X-03.
    """
    w = Watch(s)
    mtu = MTUS[s.run.parameters["mtu"]]
    lengths = [1, 44, 45, 48, 49, 255, 256, 257, mtu - 1, mtu, mtu + 1, 3 * mtu, 65536]
    await s.connect(psn_a=START, psn_b=START, mtu=s.run.parameters["mtu"], timer_exp=11)
    for n, length in enumerate(lengths):
        s.write(A, length, imm=0x8000_0001 + n if n % 3 == 2 else None)
        if n % 4 == 0:
            s.write(B, length)
    await s.done()
    sent = sorted(w.data(A), key=lambda f: (f.packet.psn - START) % (1 << 24))
    want: list[tuple[int, int, int, int]] = []
    for n, length in enumerate(lengths):
        imm = n % 3 == 2
        count = -(-length // mtu)
        for k in range(count):
            first, last = k == 0, k == count - 1
            opcode = {(1, 1): Opcode.WRITE_ONLY, (1, 0): Opcode.WRITE_FIRST, (0, 0): Opcode.WRITE_MIDDLE, (0, 1): Opcode.WRITE_LAST}[first, last]
            want.append((after(START, len(want)), opcode + int(imm and opcode in END_OPCODES), min(mtu, length - k * mtu), n))
    found = [(f.packet.psn, f.packet.opcode, len(f.packet.payload), f.packet.msn) for f in sent]
    need(found == want, "the segments of these messages, each once (PSN, opcode, payload, MSN)", [pair for pair in zip(found, want) if pair[0] != pair[1]][:4])
    need({START, 0xFFFFFF, 0} <= {f.packet.psn for f in sent}, "PSNs across the wrap")
    need({f.packet.imm for f in sent if f.packet.opcode in IMM_OPCODES} == {0x8000_0001 + n for n in range(2, 13, 3)}, "each immediate")
    need(not w.records(A, Kind.JUDGE) and not w.records(A, Kind.TIMEOUT) and not w.data(A, rtx=1), "no loss judged, no retransmission")
    need(max(r.body["drop"] for r in w.records(B, Kind.RECEIVE)) == 0xFF == min(r.body["drop"] for r in w.records(B, Kind.RECEIVE)), "nothing dropped")


for _index, _mtu in enumerate(MTUS):
    scenario(name=f"sizes_{_mtu}", mtu=_index)(sizes)


@scenario()
async def alignments(s: System) -> None:
    """Destinations at 0..7 modulo 8, sources at 7..0, both across 4 KiB borders at many offsets. MRC-REQ-060 and F-07, I-04."""
    w = Watch(s)
    await s.connect(mtu=2)
    for n in range(8):
        s.write(A, 1500 + n, target_offset=128 + n, source_offset=135 - n)
        s.write(B, 33 + n, target_offset=64 + n, source_offset=64 + 5 * n % 8)
    await s.done()
    crossing = [1, 3, 7, 8, 9, 63, 64, 700]
    for back in crossing:
        s.write(A, 1024 + 300, target_offset=4096 - back, source_offset=4096 - (back ^ 5))
        s.write(B, 2 * back, target_offset=4096 - back, source_offset=4096 - back)
    await s.done()
    addresses = {r.body["addr"] % 8 for r in w.records(B, Kind.RECEIVE, write=1)}
    need(addresses == set(range(8)), "writes at every address modulo 8", addresses)
    need(len(w.records(B, Kind.RECEIVE, write=1)) == len(w.data(A)) == 8 * 2 + 8 * 2, "each packet written once")
    borders = [r for r in w.records(B, Kind.RECEIVE, write=1) if r.body["addr"] % 4096 + r.body["rx"]["plen"] > 4096]
    need(len(borders) >= len(crossing), "payloads across a 4 KiB border", len(borders))


@scenario()
async def ipv4(s: System) -> None:
    """A connection over IPv4 beside one over IPv6: 16 bits of entropy, echoes that match, a lost packet judged. MRC-REQ-013, 082, 265."""
    w = Watch(s)
    await s.connect(0, ipv4=1, active=2, mtu=0, timer_exp=6)
    await s.connect(1, active=2, mtu=0, timer_exp=6)
    lost = s.native.rule("drop", nic=A, qp=s.p.qpn_base, opcode=int(Opcode.WRITE_MIDDLE), rtx=0)
    for qp in (0, 1):
        s.write(A, 5000, qp, imm=qp)
        s.write(B, 900, qp)
    await s.done()
    for qp in (0, 1):
        need({f.packet.ipv4 for f in w.data(A, qp)} == {qp == 0}, "QP 0 over IPv4, QP 1 over IPv6")
    need(all(f.packet.ev < 1 << 16 for f in w.data(A, 0)) and len({f.packet.ev for f in w.data(A, 0)}) == 4, "four EVs of 16 bits")
    need(any(r.body["matched"] for r in w.records(A, Kind.SACK, 0)), "a SACK that matches over IPv4")
    need(s.native.rule_hits(lost) == 1 and len(w.data(A, 0, rtx=1)) >= 1, "a loss and its retransmission")
    await w.recovered()


@scenario()
async def ev_swap(s: System) -> None:
    """With the swap bit the low half of an EV travels as source port; both ends rebuild the same value. MRC-REQ-011, 012."""
    w = Watch(s, wire_config(s.glob(A, ev_swap=1)))
    await s.connect(active=2, mtu=0, glob={"ev_swap": 1})
    s.write(A, 3000)
    s.write(B, 3000, imm=7)
    await s.done()
    values = {s.ev_value(A, 0, evi) for evi in range(s.p.total_evs)}
    for f in w.data(A):
        port, label = int.from_bytes(f.raw[54:56], "big"), int.from_bytes(f.raw[16:18], "big")
        need(label << 16 | port in values, "source port = low half, flow label = high half", (hex(port), hex(label)))
    need(all(r.body["ev_found"] for r in w.records(A, Kind.SACK)) and len(w.records(A, Kind.SACK)) > 0, "SACKs that find their EV")


@scenario(presets=("tiny",))
async def timer_exponents(s: System) -> None:
    """The first expiry comes after 2^t units of 1.024 us, for several t; t = 24 is taken, t = 25 refused. MRC-REQ-090 and R-20."""
    w = Watch(s)
    nothing = s.native.rule("drop", nic=A, count=None)
    for round_, exponent in enumerate((0, 1, 2, 3, 5, 7)):
        if round_:
            for nic in (A, B):
                await reset(s, nic)
        await s.connect(timer_exp=exponent, linear_cnt=1, exp_cnt=0, receives=0)
        s.write(A, 100, status=WcStatus.RETRY_EXCEEDED)
        await s.done()
        posted, expired = (w.records(A, kind)[-1].tick for kind in (Kind.POST, Kind.TIMEOUT))
        late = expired - posted - (8 << exponent)
        need(0 <= late <= 8, f"an expiry {8 << exponent} ticks after the post", expired - posted)
    await reset(s, A)
    need(await s.command(A, Command.MODIFY, 0, 0, int(QpState.INIT)) == PostStatus.OK, "INIT after RESET")
    for exponent, wanted in ((24, PostStatus.OK), (25, PostStatus.BAD_VALUE)):
        status = await s.command(A, Command.SET_QP, 0, 0, QpConfig(timer_exp=exponent, peer_ip=s.ip(B), peer_mac=s.mac(B)))
        need(status == wanted, f"timer_exp {exponent} answered {wanted.name}", status)
    need(s.native.rule_hits(nothing) >= 6, "every frame lost")


async def reset(s: System, nic: int, qp: int = 0) -> None:
    """The host takes a QP to RESET; its receive entries are gone."""
    need(await s.command(nic, Command.MODIFY, qp, 0, int(QpState.RESET)) == PostStatus.OK, "RESET taken")
    s.receives.pop((nic, qp), None)
