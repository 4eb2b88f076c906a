"""The invariant CRC over a stream of frame beats, for the parser and the builder (MRC-REQ-008, 009)."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.net.axis import lanes, masked
from hdl.wire.headers import BTH_AT, IP_AT, UDP_AT, span
from model import spec

POLYNOMIAL = 0xEDB88320  # CRC-32, bits in wire order (reflected)
ONES = 0xFFFFFFFF
RESIDUE = 0xDEBB20E3  # register after a packet and its own CRC


def _step(state: int) -> int:
    """The register after one more zero bit."""
    return state >> 1 ^ (POLYNOMIAL if state & 1 else 0)


def _back(state: int) -> int:
    """The register before a zero bit: the inverse of :func:`_step`."""
    top = state >> 31
    return (state ^ (POLYNOMIAL if top else 0)) << 1 & ONES | top


def after_zeros(state: int, count: int) -> int:
    """The register after ``count`` zero bytes; a negative ``count`` takes them back."""
    for _ in range(8 * abs(count)):
        state = _step(state) if count > 0 else _back(state)
    return state


def _linear(columns: list[int], bits: Value) -> Value:
    """XOR of those ``columns`` (32-bit numbers, one per input bit) whose bit is set."""
    out = []
    for row in range(32):
        mask = sum((column >> row & 1) << index for index, column in enumerate(columns))
        out.append((bits & Const(mask, len(columns))).xor())
    return Cat(out)


def invariant_ones(ipv4: bool) -> dict[int, int]:
    """Frame byte -> bits that count as ones: the fields that change on the way."""
    ip = "IPV4" if ipv4 else "IPV6"
    out: dict[int, int] = {}

    def whole(base: int, header: str, *names: str) -> None:
        for name in names:
            first, count = span(header, name)
            out.update({base + first + i: 0xFF for i in range(count)})

    whole(IP_AT, ip, "dscp", "ecn", "hop_limit", *(("checksum",) if ipv4 else ("flow_label",)))
    whole(UDP_AT[ipv4], "UDP", "udp_checksum")
    whole(BTH_AT[ipv4], "BTH", "var")
    if not ipv4:
        out[IP_AT] = 0x0F  # the version nibble stays
    return out


BEATS_NAMED = BTH_AT[False] + spec.BTH_BYTES  # beats behind this byte are all alike


class Icrc(wiring.Component):
    """CRC of a frame from its IP header on, ``width`` bits a clock.

    ``index`` is the number of the beat in its frame (it may stop counting at any number of beats beyond the BTH); ``count`` says how many
    bytes of the beat, from the lowest, lie before the end of what is covered (bytes before the IP header are left out here). The register
    takes a beat with ``valid``; beats of one frame must not be mixed with others. From the next clock on ``match`` tells that what was
    covered ended with its own ICRC, and :class:`IcrcValue` makes the ICRC of ``state`` and ``tail`` (zero bytes taken in behind the end).
    """

    def __init__(self, width: int) -> None:
        if width not in (64, 128, 256, 512):
            raise ValueError(f"an ICRC over {width} bits a clock: 64, 128, 256 and 512 are supported")
        self.width = width
        nbytes = width // 8
        super().__init__({
            "valid": In(1), "index": In(range(BEATS_NAMED // nbytes + 2)), "ipv4": In(1), "data": In(width), "count": In(range(nbytes + 1)),
            "state": Out(32), "tail": Out(range(nbytes + 1)), "match": Out(1),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        nbytes = self.width // 8
        state, tail = self.state, self.tail
        ones = []
        for lane in range(nbytes):
            bits: Value = Const(0, 8)
            for ipv4 in (False, True):
                for at, mask in invariant_ones(ipv4).items():
                    if at % nbytes == lane:
                        hit = (self.index == at // nbytes) & (self.ipv4 == int(ipv4))
                        bits = bits | (hit.replicate(8) & mask)
            ones.append(bits)
        first, skip = divmod(IP_AT, nbytes)
        begin = self.index == first
        keep = lanes(self.count, nbytes) & Mux(begin, Const((1 << nbytes) - (1 << skip), nbytes), Const(-1, nbytes))
        word = Signal(self.width)
        before = Signal(32)
        m.d.comb += [
            word.eq(masked(self.data | Cat(ones), keep)),
            # 8 bytes of ones come before the packet; the zeros put in place of what precedes the IP header in its beat are taken back.
            before.eq(Mux(begin, after_zeros(_ones_first(), -skip), state)),
        ]
        # A bit of the register meets the first 32 data bits, so both are one vector.
        columns = []
        for bit in range(self.width):
            columns.append(_shift_out(bit, self.width))
        joined = Cat(before ^ word[:32], word[32:])
        with m.If(self.valid):
            m.d.sync += [state.eq(_linear(columns, joined)), tail.eq(nbytes - self.count)]
        with m.Switch(tail):
            for count in range(nbytes + 1):
                with m.Case(count):
                    m.d.comb += self.match.eq(state == after_zeros(RESIDUE, count))
        return m


class IcrcValue(wiring.Component):
    """The ICRC (first byte on the wire in the lowest bits) from what :class:`Icrc` holds: one XOR stage, a constant matrix per number of
    zeros to undo."""

    def __init__(self, width: int) -> None:
        self.nbytes = width // 8
        super().__init__({"state": In(32), "tail": In(range(self.nbytes + 1)), "value": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.Switch(self.tail):
            for count in range(self.nbytes + 1):
                with m.Case(count):
                    m.d.comb += self.value.eq(~_linear([after_zeros(1 << bit, -count) for bit in range(32)], self.state))
        return m


def _ones_first() -> int:
    """The register after the 8 bytes of ones that precede every packet."""
    state = ONES
    for _ in range(64):
        state = _step(state ^ 1)
    return state


def _shift_out(bit: int, width: int) -> int:
    """What data bit ``bit`` of a ``width``-bit word leaves in the register."""
    state = 1
    for _ in range(width - bit):
        state = _step(state)
    return state
