"""The receiver's checks without state: which frames are kept, and why the others are not (MRC-REQ-020 to 036).

The text that decides every edge is that of :mod:`model.wire`; causes and their order are those of :class:`model.spec.Drop` there.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.host.registers import drop_pulse
from hdl.layouts import GLOBAL_CONFIG
from hdl.net.axis import axis_beat, masked
from hdl.wire.headers import BTH_AT, EXT_AT, IP_AT, KNOWN_OPCODES, UDP_AT, field_in, span
from hdl.wire.icrc import Icrc
from model import spec
from model.spec import Drop

NOT_TRIMMED, TRIMMED, TRIMMED_LASTHOP = range(3)  # rx_frame.trimmed
OVERHEAD = spec.UDP_BYTES + spec.BTH_BYTES + spec.ICRC_BYTES  # of a UDP packet without extension headers
LENGTH_BITS = 17  # frame lengths and ends of packets as their fields claim


def frame_word(width: int) -> data.StructLayout:
    """A beat of a frame that is held."""
    return data.StructLayout({"data": width, "last": 1})


FRAME_NOTE = data.StructLayout({
    "ipv4": 1, "trimmed": 2,
    "ext_words": 4,  # extension headers in units of 4 bytes
    "plen": 13,  # payload bytes without pad that are delivered
})  # fmt: skip


class FrameCheck(wiring.Component):
    """Takes frames from the MAC and writes them into a frame store: ``w_*``, ``commit``, ``abort`` as
    :class:`hdl.net.frame_store.FrameStore` wants them.

    A beat a clock; the verdict comes three clocks after the last beat: ``commit`` with a ``note`` for the reader, or ``abort`` with a
    ``drop`` pulse. ``room`` must fall while at least ``MARGIN`` more words fit. With ``stallable`` the MAC then waits; otherwise the
    frame is dropped as BAD_FRAME. Frames that exceed MAX_FRAME are not stored, so they never wait. ``rx_frame`` pulses for every frame
    that ended, kept or not; ``rx_bytes`` is the number of bytes taken in a clock.
    """

    MARGIN = 8

    def __init__(self, width: int, *, stallable: bool = True) -> None:
        self.width = width
        self.stallable = stallable
        super().__init__({
            "rx": In(stream.Signature(axis_beat(width))),
            "global_config": In(GLOBAL_CONFIG),
            "room": In(1),
            "w_valid": Out(1), "w_data": Out(frame_word(width)), "commit": Out(1), "abort": Out(1), "note": Out(FRAME_NOTE),
            "drop": Out(drop_pulse()), "rx_frame": Out(1), "rx_bytes": Out(16),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        nbytes = self.width // 8
        last_index = -(-spec.MAX_FRAME // nbytes)  # beats of this number and later are not stored
        cfg, rx = self.global_config, self.rx

        # --- first stage: the beat, and the fields on which checks depend -----------------------------------------------------------
        index = Signal(range(last_index + 1))  # of the beat at the input
        take = Signal()
        m.d.comb += [rx.ready.eq(self.room if self.stallable else 1), take.eq(rx.valid & rx.ready)]
        word = masked(rx.payload.data, rx.payload.keep)
        keep = rx.payload.keep
        ragged = (keep & (keep + 1)[:nbytes]).any() | (~rx.payload.last & ~keep.all())
        flagged = rx.payload.bad | ragged | (0 if self.stallable else ~self.room)

        a_valid, a_last, a_bad = Signal(), Signal(), Signal()
        a_word = Signal(self.width)
        a_count = Signal(range(nbytes + 1))
        a_index = Signal(range(last_index + 1))
        m.d.sync += a_valid.eq(take)
        with m.If(take):
            m.d.sync += [
                a_last.eq(rx.payload.last),
                a_word.eq(word),
                a_count.eq(sum((keep[lane] for lane in range(1, nbytes)), keep[0])),
                a_index.eq(index),
                a_bad.eq(flagged | (a_bad & (index != 0))),
                index.eq(Mux(rx.payload.last, 0, Mux(index == last_index, last_index, index + 1))),
            ]

        def caught(base: int, header: str, name: str) -> Value:
            """Field ``name`` of the frame in the first stage; what the frame does not reach reads 0."""
            start, count = span(header, name)
            parts = []
            for at in range(base + start, base + start + count):
                number, lane = divmod(at, nbytes)
                octet = Signal(8, name=f"{header}_{name}_{at}".lower())
                with m.If(take):
                    with m.If(index == number):
                        m.d.sync += octet.eq(word.word_select(lane, 8))
                    with m.Elif(index == 0):
                        m.d.sync += octet.eq(0)
                parts.append(octet)
            return field_in(Cat(parts), header, name)

        ethertype = caught(0, "ETH", "ethertype")
        ipv4 = Signal()
        ipv6 = Signal()
        m.d.comb += [ipv4.eq(ethertype == spec.ETHERTYPE_IPV4), ipv6.eq(ethertype == spec.ETHERTYPE_IPV6)]

        def either(header: str, name: str, base: dict[bool, int]) -> Value:
            return Mux(ipv4, caught(base[True], header, name), caught(base[False], header, name))

        version = caught(IP_AT, "IPV4", "version")
        ihl = caught(IP_AT, "IPV4", "ihl")
        dscp = Mux(ipv4, caught(IP_AT, "IPV4", "dscp"), caught(IP_AT, "IPV6", "dscp"))
        total = caught(IP_AT, "IPV4", "total_length")
        payload_length = caught(IP_AT, "IPV6", "payload_length")
        protocol = Mux(ipv4, caught(IP_AT, "IPV4", "protocol"), caught(IP_AT, "IPV6", "protocol"))
        fragmented = caught(IP_AT, "IPV4", "mf").any() | caught(IP_AT, "IPV4", "fragment").any()
        dport = either("UDP", "dport", UDP_AT)
        udp_length = either("UDP", "udp_length", UDP_AT)
        opcode = either("BTH", "opcode", BTH_AT)
        pad = either("BTH", "pad", BTH_AT)
        tver = either("BTH", "tver", BTH_AT)
        ts = either("BTH", "ts", BTH_AT)

        length = Signal(LENGTH_BITS)  # of the frame, right at its last beat
        ip_end = Signal(LENGTH_BITS)  # as the length field claims
        udp_end = Signal(LENGTH_BITS)
        is_udp = Signal()
        trimmed = Signal(2)
        words = Signal(4)
        known = Signal()
        is_data = Signal()
        m.d.comb += [
            length.eq(a_index * nbytes + a_count),
            ip_end.eq(Mux(ipv4, total + IP_AT, payload_length + UDP_AT[False])),
            udp_end.eq(udp_length + Mux(ipv4, UDP_AT[True], UDP_AT[False])),
            is_udp.eq((protocol == spec.IP_PROTO_UDP) & (ipv6 | ((ihl == spec.IPV4_BYTES // 4) & ~fragmented))),
        ]
        with m.If(dscp == cfg.dscp_trimmed):
            m.d.comb += trimmed.eq(TRIMMED)
        with m.Elif(dscp == cfg.dscp_trimmed_lasthop):
            m.d.comb += trimmed.eq(TRIMMED_LASTHOP)
        with m.Switch(opcode):
            for op in KNOWN_OPCODES:
                with m.Case(op):
                    short, long = (spec.extension_bytes(op, flag) // 4 for flag in (0, 1))
                    m.d.comb += [known.eq(1), is_data.eq(op in spec.DATA_OPCODES), words.eq(Mux(ts, long, short))]
        needed = Signal(range(OVERHEAD + 64))  # UDP length of this opcode without payload
        m.d.comb += needed.eq(OVERHEAD + (words << 2) + pad)

        # --- second stage: the checks that need no sum, as bits; the beat goes through the ICRC ------------------------------------------
        order = (
            Drop.BAD_FRAME, Drop.ETHERTYPE, Drop.IP_VERSION, Drop.IP_LENGTH, Drop.IP_CHECKSUM, Drop.NOT_UDP, Drop.UDP_PORT, "no_bth", Drop.ICRC,
            Drop.BTH_VERSION, Drop.OPCODE, Drop.TRIM_IGNORED, "no_extension",
        )  # fmt: skip
        early = {cause: Signal(name=f"b_{cause if isinstance(cause, str) else cause.name.lower()}") for cause in order}
        b_valid, b_last, b_keep = Signal(), Signal(), Signal()
        b_word = Signal(self.width)
        b_index = Signal(range(last_index + 1))
        b_ipv4, b_summed, b_trimmed = Signal(), Signal(), Signal()
        b_count = Signal(range(nbytes + 1))
        b_note = Signal(FRAME_NOTE)
        left = Signal(LENGTH_BITS + 1)  # bytes from the start of this beat to the end of the UDP packet, modulo 2^18
        m.d.comb += left.eq(udp_end - a_index * nbytes)
        bth_inside = Mux(ipv4, a_index < EXT_AT[True] // nbytes, a_index < EXT_AT[False] // nbytes)
        m.d.sync += [
            b_valid.eq(a_valid),
            b_last.eq(a_last),
            b_word.eq(a_word),
            b_index.eq(a_index),
            b_keep.eq((a_index != last_index) & ~a_bad),  # the rest of a frame that is lost anyway takes no room
            b_ipv4.eq(ipv4),
            # The UDP length is not known in the first beats; a packet that ends before its BTH does is refused without its ICRC.
            b_count.eq(Mux(bth_inside | (~left[-1] & (left >= nbytes)), nbytes, Mux(left[-1], 0, left[: nbytes.bit_length()]))),
            b_summed.eq(ipv4 & (ihl == spec.IPV4_BYTES // 4)),
            b_trimmed.eq(trimmed != NOT_TRIMMED),
            b_note.ipv4.eq(ipv4),
            b_note.trimmed.eq(trimmed),
            b_note.ext_words.eq(words),
            b_note.plen.eq(Mux(is_data & (trimmed == NOT_TRIMMED), udp_length - needed, 0)),
            early[Drop.BAD_FRAME].eq(a_bad | (length < spec.ETH_BYTES) | (length > spec.MAX_FRAME) | (a_index == last_index)),
            early[Drop.ETHERTYPE].eq(~ipv4 & ~ipv6),
            early[Drop.IP_VERSION].eq(version != Mux(ipv4, 4, 6)),
            early[Drop.IP_LENGTH].eq(
                (trimmed == NOT_TRIMMED)
                & ((ip_end > length) | (ipv4 & (total < spec.IPV4_BYTES)) | (is_udp & ((udp_length < spec.UDP_BYTES) | (udp_end != ip_end))))
            ),
            early[Drop.NOT_UDP].eq(~is_udp),
            early[Drop.UDP_PORT].eq(dport != cfg.udp_port),
            early["no_bth"].eq(
                Mux(trimmed == NOT_TRIMMED, udp_length < OVERHEAD, length < Mux(ipv4, EXT_AT[True], EXT_AT[False]))
            ),
            early[Drop.BTH_VERSION].eq(tver != 0),
            early[Drop.OPCODE].eq(~known),
            early[Drop.TRIM_IGNORED].eq((trimmed != NOT_TRIMMED) & ~is_data),
            early["no_extension"].eq((trimmed == NOT_TRIMMED) & (udp_length < needed)),
        ]
        m.submodules.icrc = icrc = Icrc(self.width)
        beats_named = (1 << len(icrc.index)) - 1
        m.d.comb += [
            icrc.valid.eq(b_valid & (b_count != 0)),
            icrc.index.eq(Mux(b_index > beats_named, beats_named, b_index)),
            icrc.ipv4.eq(b_ipv4),
            icrc.data.eq(b_word),
            icrc.count.eq(b_count),
        ]

        # The IPv4 header's 16-bit words, those of it that lie in this beat.
        terms = []
        for lane in range(0, nbytes, 2):
            beats = [at // nbytes for at in range(IP_AT, UDP_AT[True], 2) if at % nbytes == lane]
            if beats:
                inside = sum(((b_index == beat) for beat in beats[1:]), b_index == beats[0]).any()
                pair = Cat(b_word.word_select(lane + 1, 8), b_word.word_select(lane, 8))
                terms.append(Mux(inside, pair, 0))
        header_sum = Signal(20)  # ten words

        # --- third stage: store, and the verdict at the last beat ------------------------------------------------------------------------
        late = {cause: Signal(name=f"c_{cause if isinstance(cause, str) else cause.name.lower()}") for cause in order}
        c_valid, c_last, c_keep, c_summed, c_trimmed = Signal(), Signal(), Signal(), Signal(), Signal()
        c_word = Signal(self.width)
        c_note = Signal(FRAME_NOTE)
        m.d.sync += [
            c_valid.eq(b_valid),
            c_last.eq(b_last),
            c_keep.eq(b_keep),
            c_summed.eq(b_summed),
            c_trimmed.eq(b_trimmed),
            c_word.eq(b_word),
            c_note.eq(b_note),
        ]
        m.d.sync += [late[cause].eq(early[cause]) for cause in order if cause not in (Drop.ICRC, Drop.IP_CHECKSUM)]
        with m.If(b_valid):
            m.d.sync += header_sum.eq(sum(terms, Mux(b_index == 0, 0, header_sum)))
        folded = header_sum[:16] + header_sum[16:]
        m.d.comb += [
            late[Drop.IP_CHECKSUM].eq(c_summed & (folded != 0xFFFF)),
            late[Drop.ICRC].eq(~c_trimmed & ~icrc.match),
        ]
        refused = Signal()
        cause_now = Signal(8)
        for number, cause in enumerate(order):
            with m.If(late[cause]) if number == 0 else m.Elif(late[cause]):
                m.d.comb += [refused.eq(1), cause_now.eq(Drop.SHORT if isinstance(cause, str) else cause)]
        ended = c_valid & c_last
        m.d.comb += [
            self.w_valid.eq(c_valid & c_keep),
            self.w_data.data.eq(c_word),
            self.w_data.last.eq(c_last),
            self.commit.eq(ended & ~refused),
            self.abort.eq(ended & refused),
            self.note.eq(c_note),
        ]
        m.d.sync += [
            self.drop.valid.eq(ended & refused),
            self.drop.cause.eq(cause_now),
            self.rx_frame.eq(ended),
            self.rx_bytes.eq(Mux(a_valid, a_count, 0)),
        ]
        return m
