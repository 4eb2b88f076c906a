"""Frames that no check of a QP ever sees: each is dropped, counted under its one cause, and the next good frame works.

Covers MRC-REQ-020..036, 190; failure modes R-06, I-06, X-03, X-11, F-05.
"""

from __future__ import annotations

from model.spec import MAX_FRAME, Drop, Dscp, Opcode, extension_bytes
from model.wire import parse
from model.wire_packet import TRIMMED, TRIMMED_LASTHOP, Packet
from verif.system.env import A, B, System
from verif.system.frames import BTH, ETH, Intruder, bth_at, flip, good, put, relength, seal, udp_at
from verif.system.scenarios import scenario

SAMPLES = (Opcode.WRITE_ONLY_IMM, Opcode.SACK, Opcode.NACK, Opcode.ACK, Opcode.PROBE)


async def both(s: System, psn: int = 100) -> Intruder:
    """QP 0 over IPv6, QP 1 over IPv4, both at ``psn``; a good frame has passed on each, so ``psn`` + 1 is expected next."""
    await s.connect(0, psn_a=psn)
    await s.connect(1, psn_a=psn, ipv4=1)
    intruder = Intruder(s)
    await good(s, 0)
    await good(s, 1)
    return intruder


async def end(s: System, intruder: Intruder) -> None:
    """Good frames still work on both QPs, and nobody counted anything else. First the links empty themselves: a frame that queues behind
    hundreds of others is judged lost and sent again, with causes of its own."""
    await s.quiet(1200)
    for qp in (0, 1):
        await good(s, qp, 300)
    await intruder.check()


@scenario()
async def frames_cut(s: System) -> None:
    """A frame of each opcode, cut at every byte: below 14 bytes BAD_FRAME, at 14 IP_VERSION, above IP_LENGTH."""
    x = await both(s)
    for opcode in SAMPLES:
        whole = x.frame(opcode, psn=101)
        for size in range(1, len(whole)):
            x.send(whole[:size], Drop.BAD_FRAME if size < ETH else Drop.IP_VERSION if size == ETH else Drop.IP_LENGTH)
    whole = x.frame(qp=1, psn=101, ipv4=True)
    for size in range(1, len(whole)):
        x.send(whole[:size], Drop.BAD_FRAME if size < ETH else Drop.IP_VERSION if size == ETH else Drop.IP_LENGTH)
    await x.check()
    await end(s, x)


@scenario()
async def frames_short(s: System) -> None:
    """Cut frames whose length fields and ICRC fit what is left: IP_LENGTH below a UDP header, else SHORT below headers + pad."""
    x = await both(s)
    for ipv4 in (False, True):
        for opcode in SAMPLES:
            packet = x.packet(opcode, qp=int(ipv4), psn=101, ipv4=ipv4)
            whole = x.frame(opcode, qp=int(ipv4), psn=101, ipv4=ipv4)
            at = udp_at(whole)
            needed = at + 8 + BTH + extension_bytes(opcode, packet.ts) + packet.pad + 4
            for size in range(at, needed):
                # The lengths are those of the cut frame, though the UDP header that holds them may be cut itself.
                short = relength(whole[:size] + bytes(max(0, at + 8 - size)))[:size] if size < at + 8 else relength(whole[:size])
                x.send(short, Drop.IP_LENGTH if size < at + 8 else Drop.SHORT)
            await x.check()
    await end(s, x)


@scenario()
async def headers_wrong(s: System) -> None:
    """One wrong value in Ethernet, IP, UDP or BTH at a time, every checksum right for what is sent, unless the checksum is what is wrong."""
    x = await both(s)
    six, four = x.frame(psn=101), x.frame(qp=1, psn=101, ipv4=True)
    for value in (0, 0x05DC, 0x0806, 0x0801, 0x8100, 0x86DC, 0x88CC, 0xDD86, 0xFFFF):
        x.send(put(six, 12, value, 2), Drop.ETHERTYPE)
    for version in range(16):
        if version != 6:
            x.send(put(six, ETH, version << 4 | six[ETH] & 15), Drop.IP_VERSION)
        if version != 4:
            x.send(seal(put(four, ETH, version << 4 | 5)), Drop.IP_VERSION)
    udp6, udp4 = udp_at(six), udp_at(four)
    for change in (-(1 << 6), -4, -1, 1, 4, 1000):
        x.send(put(six, 18, len(six) - udp6 + change, 2), Drop.IP_LENGTH)
        x.send(put(six, udp6 + 4, len(six) - udp6 + change, 2), Drop.IP_LENGTH)
        x.send(seal(put(four, 16, len(four) - ETH + change, 2)), Drop.IP_LENGTH)
        x.send(put(four, udp4 + 4, len(four) - udp4 + change, 2), Drop.IP_LENGTH)
    for total in (0, 19, 20):
        x.send(seal(put(four, 16, total, 2)), Drop.IP_LENGTH)
    await x.check()
    for bit in range(16):
        x.send(flip(four, 24 + bit // 8, bit % 8), Drop.IP_CHECKSUM)
    for at in (15, 18, 19, 22, 26, 29, 30, 33):  # TOS, identification, TTL, addresses, each without a new checksum
        x.send(flip(four, at, 1), Drop.IP_CHECKSUM)
    for value in (0, 1, 6, 43, 44, 58, 59, 136):
        x.send(seal(put(six, 20, value)), Drop.NOT_UDP)
        x.send(seal(put(four, 23, value)), Drop.NOT_UDP)
    for fragment in (0x2000, 0x2001, 1, 0x1FFF, 0x6000):  # MF, offset, both, DF too
        x.send(seal(put(four, 20, fragment, 2)), Drop.NOT_UDP)
    for words in (0, 4, 6, 15):
        x.send(seal(put(four, ETH, 0x40 | words)), Drop.NOT_UDP)
    for port in (0, 4790, 4792, 4971, 0xB712, 0xFFFF):
        x.send(seal(put(six, udp6 + 2, port, 2)), Drop.UDP_PORT)
        x.send(seal(put(four, udp4 + 2, port, 2)), Drop.UDP_PORT)
    await x.check()
    for frame in (six, four):
        at = bth_at(frame)
        for version in range(1, 16):
            x.send(seal(put(frame, at + 1, frame[at + 1] & 0xF0 | version)), Drop.BTH_VERSION)
    await end(s, x)


@scenario()
async def opcodes_wrong(s: System) -> None:
    """Every opcode that this NIC does not take (endpoint requests and responses too), all else right."""
    x = await both(s)
    taken = set(range(0xC6, 0xCC)) | {0xD1, 0xDC, 0xDD, 0xDE}
    frame = x.frame(psn=101)
    for opcode in range(256):
        if opcode not in taken:
            x.send(seal(put(frame, bth_at(frame), opcode)), Drop.OPCODE)
    await end(s, x)
    assert x.wanted[B][Drop.OPCODE] == 246


@scenario()
async def icrc_wrong(s: System) -> None:
    """One inverted bit, in each byte that the ICRC covers and that no earlier check sees, and in each bit of the ICRC. Where it covers nothing
    (traffic class, flow label, hop limit, UDP checksum, BTH byte 4; I-01) a probe with an inverted bit is answered."""
    x = await both(s)
    for frame in (x.frame(psn=101), x.frame(qp=1, psn=101, ipv4=True), x.frame(Opcode.SACK)):
        udp, bth = udp_at(frame), bth_at(frame)
        covered = [*range(22 if udp > 40 else 0, udp if udp > 40 else 0), udp, udp + 1, *range(bth, len(frame))]
        for n, at in enumerate(covered):
            if at != bth + 4:
                x.send(flip(frame, at, n % 8), Drop.ICRC)
        for bit in range(32):
            x.send(flip(frame, len(frame) - 4 + bit // 8, bit % 8), Drop.ICRC)
        x.send(put(frame, len(frame) - 4, int.from_bytes(frame[-4:], "little"), 4), Drop.ICRC)  # the wrong way round
        x.send(put(frame, len(frame) - 4, 0, 4), Drop.ICRC)
    await x.check()
    probe = x.frame(Opcode.PROBE)
    for n, at in enumerate((15, 16, 17, 21, 60, 61, 66)):
        # Its answers reach a NIC that sent no such probe, and repeat an ACK for a message that is complete.
        x.send(flip(probe, at, 6 if at == 15 else n), None, Drop.EV_UNMATCHED, delay=1500 * n)
        x.expect(None, Drop.ACK_IGNORED)
    await x.check(quiet=2000)
    await end(s, x)


@scenario()
async def sizes_wrong(s: System) -> None:
    """Runts, frames beyond the largest, frames that the MAC calls bad; padding of any length is no fault."""
    x = await both(s)
    frame = x.frame(psn=101)
    for size in range(1, ETH):
        x.send(bytes(size), Drop.BAD_FRAME)
        x.send(frame[:size], Drop.BAD_FRAME, bad=True)
    for size in (MAX_FRAME + 1, MAX_FRAME + 2, MAX_FRAME + 8, MAX_FRAME + 9, 5000, 9018, 16000):
        x.send(frame.ljust(size, b"\xaa"), Drop.BAD_FRAME)
    for opcode in SAMPLES:
        x.send(x.frame(opcode, psn=101), Drop.BAD_FRAME, bad=True)
    x.send(x.frame(psn=101, payload=bytes(1024)), Drop.BAD_FRAME, bad=True)
    x.send(put(frame, 12, 0, 2), Drop.BAD_FRAME, bad=True)  # the MAC's word comes first
    await x.check()
    for n, size in enumerate((len(frame) + 1, 1000, MAX_FRAME - 1, MAX_FRAME)):
        x.send(x.frame(Opcode.PROBE).ljust(size, b"\x55"), None, Drop.EV_UNMATCHED, delay=2500 * n)
        x.expect(None, Drop.ACK_IGNORED)
    await x.check(quiet=3000)
    await end(s, x)


def _trimmed_cause(size: int, ipv4: bool) -> Drop | None:
    """What a trimmed frame of ``size`` bytes is dropped for (missing bytes read as 0); None: it reaches the responder."""
    if size < ETH:
        return Drop.BAD_FRAME
    if size == ETH:
        return Drop.IP_VERSION
    if ipv4:
        steps = ((16, Drop.IP_LENGTH), (34, Drop.IP_CHECKSUM), (38, Drop.UDP_PORT), (54, Drop.SHORT))
    else:
        steps = ((21, Drop.NOT_UDP), (58, Drop.UDP_PORT), (74, Drop.SHORT))
    return next((cause for limit, cause in steps if size < limit), None)


@scenario()
async def trimmed_cut(s: System) -> None:
    """Trimmed frames cut at every byte: from the end of the BTH on they cause their NACK (which A ignores: it sent no such PSN), before it they
    are dropped. Trimmed frames of opcodes without data are TRIM_IGNORED (MRC-REQ-031, 032, 196)."""
    x = await both(s)
    for dscp, trimmed in ((Dscp.TRIMMED, TRIMMED), (Dscp.TRIMMED_LASTHOP, TRIMMED_LASTHOP)):
        for ipv4 in (False, True):
            whole = x.frame(Opcode.WRITE_ONLY_IMM, qp=int(ipv4), psn=101, ipv4=ipv4, dscp=int(dscp), trimmed=trimmed)
            for size in range(1, len(whole) + 1):
                cause = _trimmed_cause(size, ipv4)
                x.send(whole[:size], cause, None if cause is not None else Drop.NACK_IGNORED)
            await x.check()
        for opcode in SAMPLES[1:]:
            x.send(x.frame(opcode, dscp=int(dscp)), Drop.TRIM_IGNORED)
        x.send(seal(put(whole := x.frame(psn=101, dscp=int(dscp)), bth_at(whole), 0xD8)), Drop.OPCODE)
        x.send(put(whole, bth_at(whole) + 1, 1), Drop.BTH_VERSION)
    await end(s, x)
    s.wanted_kinds |= {"responder.emit_nack", "requestor.nack"}


@scenario(seeds=2)
async def garbage(s: System) -> None:
    """Random bytes, random bytes behind good headers, and good frames with a few bytes changed. The codec names the cause of each."""
    x = await both(s)
    rng = s.rng

    def one() -> bytes:
        frame = x.frame(rng.choice(SAMPLES), psn=101) if rng.random() < 0.7 else x.frame(qp=1, psn=101, ipv4=True)
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.randrange(1, 400))
        if kind == 1:
            keep = rng.choice((ETH, udp_at(frame), bth_at(frame)))
            return frame[:keep] + rng.randbytes(rng.randrange(0, 300))
        if kind == 2:
            keep = bth_at(frame)
            return relength(frame[:keep] + rng.randbytes(rng.randrange(BTH + 4, 200)))
        for _ in range(rng.randrange(1, 5)):
            frame = put(frame, rng.randrange(len(frame)), rng.randrange(256))
        return frame

    for _ in range(600):
        frame = one()
        cause = parse(frame, s.wire)
        if isinstance(cause, Packet):
            continue  # the change was none, or where nobody looks
        x.send(frame, cause)
    assert x.sent > 500 and len(x.wanted[B]) >= 8, x.wanted[B]
    await end(s, x)


@scenario()
async def bad_in_traffic(s: System) -> None:
    """Bad frames between the good ones of running traffic, in both directions: exact counts, and the traffic does not notice."""
    x, y = await both(s), Intruder(s, A)
    y.wanted = (x.wanted[0], x.wanted[1])
    for n in range(60):
        for intruder in (x, y):
            frame = intruder.frame(psn=101)
            at = bth_at(frame)
            cause, bad = s.rng.choice((
                (Drop.ICRC, flip(frame, s.rng.randrange(at + 5, len(frame)))), (Drop.IP_LENGTH, frame[: s.rng.randrange(80, len(frame))]),
                (Drop.OPCODE, seal(put(frame, at, 0xD8))), (Drop.BTH_VERSION, seal(put(frame, at + 1, 9))), (Drop.BAD_FRAME, bytes(5000)),
                (Drop.UNKNOWN_QP, seal(put(frame, at + 5, 0x777777, 3))), (Drop.PKEY, seal(put(frame, at + 2, 0x7FFF, 2))),
                (Drop.ADDRESS, seal(flip(frame, 22, 3))), (Drop.PKEY, intruder.frame(Opcode.ACK, pkey=5)),
                (Drop.ETHERTYPE, put(frame, 12, 0x8100, 2)), (Drop.UNKNOWN_QP, intruder.frame(Opcode.SACK, dest_qp=2)),
            ))  # fmt: skip
            intruder.send(bad, cause, delay=s.rng.randrange(200 * n + 1))
        if n % 3 == 0:
            for nic in (A, B):
                s.write(nic, s.rng.randrange(1, 5000), n // 3 % 2)
        await s.step(150)
    await s.done()
    await x.check(ignore=(Drop.DUPLICATE, Drop.EV_UNMATCHED, Drop.ACK_IGNORED, Drop.NACK_IGNORED))
    y.untouched()
