"""From a frame that passed its checks to a descriptor and its payload."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import GLOBAL_CONFIG, Layouts
from hdl.net.axis import lanes, masked, payload_beat
from hdl.params import Params
from hdl.wire.check import FRAME_NOTE, NOT_TRIMMED, frame_word
from hdl.wire.headers import BTH_AT, EXT_AT, IP_AT, MAX_HEADERS, UDP_AT, field_of
from model import spec
from model.spec import Ecn, Opcode


class FrameExtract(wiring.Component):
    """Reads frames of the store, one word a clock.

    ``desc`` appears as soon as the frame's headers have been read and waits there: the next frame's first word is read after it was
    taken. ``payload`` holds exactly ``plen`` bytes of each frame, from bit 0. The last word of a payload may leave while the next frame's
    first word is read. Fixed fields of extension headers read 0, absent headers too; with pr = 1 a SACK's probe id stands in
    ``ack_psn_offset``.
    """

    def __init__(self, params: Params) -> None:
        self.p = params
        self.width = params.port_width
        super().__init__({
            "words": In(stream.Signature(frame_word(self.width))),
            "notes": In(stream.Signature(FRAME_NOTE)),
            "global_config": In(GLOBAL_CONFIG),
            "plane": In(params.plane_bits),
            "desc": Out(stream.Signature(Layouts(params).rx_frame)),
            "payload": Out(stream.Signature(payload_beat(self.width))),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        nbytes = self.width // 8
        kept = -(-MAX_HEADERS // nbytes)
        words, out = self.words, self.payload

        note = Signal(FRAME_NOTE)
        index = Signal(range(kept + 1))  # of the word at the input, no further than ``kept``
        headers = [Signal(self.width, name=f"header{i}") for i in range(kept)]
        behind = Signal(range(MAX_HEADERS + 1))  # bytes of headers
        first = index == 0
        coming = Mux(first, self.notes.payload.as_value(), note.as_value())
        current = FRAME_NOTE(coming)
        m.d.comb += behind.eq(Mux(current.ipv4, EXT_AT[True], EXT_AT[False]) + (current.ext_words << 2))
        shift = len(behind) - (nbytes - 1).bit_length()
        header_end = Signal(range(kept + 1))  # the word in which the headers end
        m.d.comb += header_end.eq(behind[-shift:])

        left = Signal(13)  # payload bytes that have not been delivered
        here = Signal()  # ``held`` lies in the payload
        ended = Signal()  # ``held`` is the last word of its frame
        held = Signal(self.width)
        offset = Signal(range(nbytes))  # where the payload starts in its words
        free = ~out.valid | out.ready
        owing = here & (left != 0)
        advance, emit = Signal(), Signal()
        m.d.comb += [
            advance.eq(words.valid & Mux(first, self.notes.valid & ~(self.desc.valid & ~self.desc.ready), 1) & (free | ~owing)),
            emit.eq(free & owing & (ended | words.valid)),
            words.ready.eq(advance),
            self.notes.ready.eq(advance & first),
        ]
        with m.If(self.desc.ready):
            m.d.sync += self.desc.valid.eq(0)
        with m.If(out.ready):
            m.d.sync += out.valid.eq(0)

        both = Cat(held, Mux(ended, 0, words.payload.data))
        aligned = Signal(self.width)
        with m.Switch(offset):
            for step in range(2, nbytes, 4):  # every header has a multiple of 4 bytes, Ethernet's has 14
                with m.Case(step):
                    m.d.comb += aligned.eq(both[8 * step : 8 * step + self.width])
        final = left <= nbytes
        with m.If(emit):
            m.d.sync += [
                out.valid.eq(1),
                out.payload.data.eq(masked(aligned, Mux(final, lanes(left[: nbytes.bit_length()], nbytes), (1 << nbytes) - 1))),
                out.payload.last.eq(final),
                left.eq(Mux(final, 0, left - nbytes)),
            ]
        with m.If(advance):
            m.d.sync += [
                held.eq(words.payload.data),
                ended.eq(words.payload.last),
                index.eq(Mux(words.payload.last, 0, Mux(index == kept, kept, index + 1))),
                here.eq(index >= header_end),
            ]
            with m.If(first):
                m.d.sync += [note.eq(self.notes.payload), left.eq(self.notes.payload.plen), offset.eq(behind[: (nbytes - 1).bit_length()])]
            for number, header in enumerate(headers):
                with m.If(index == number):
                    m.d.sync += header.eq(words.payload.data)
                with m.Elif(first):
                    m.d.sync += header.eq(0)
            with m.If((index == header_end) | (words.payload.last & (index < header_end))):
                m.d.sync += self.desc.valid.eq(1)
        m.submodules.describe = describe = Describe(self.p)
        m.d.comb += [
            describe.frame.eq(Cat(headers)),
            describe.note.eq(note),
            describe.plane.eq(self.plane),
            describe.ev_swap.eq(self.global_config.ev_swap),
            self.desc.payload.eq(describe.desc),
        ]
        return m


class Describe(wiring.Component):
    """The descriptor of a frame from the bytes of its headers. No register."""

    def __init__(self, params: Params) -> None:
        self.p = params
        octets = -(-MAX_HEADERS // (params.port_width // 8)) * (params.port_width // 8)
        super().__init__({
            "frame": In(8 * octets), "note": In(FRAME_NOTE), "plane": In(params.plane_bits), "ev_swap": In(1),
            "desc": Out(Layouts(params).rx_frame),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        frame, note, d = self.frame, self.note, self.desc

        def ip(name: str, header: str | None = None) -> Value:
            pair = [field_of(frame[8 * IP_AT :], h, header or name) for h in ("IPV4", "IPV6")]
            return Mux(note.ipv4, *pair)

        def at(base: dict[bool, int], header: str, name: str, further: int = 0) -> Value:
            return Mux(note.ipv4, *(field_of(frame[8 * (base[v4] + further) :], header, name) for v4 in (True, False)))

        sport = at(UDP_AT, "UDP", "sport")
        label = field_of(frame[8 * IP_AT :], "IPV6", "flow_label")
        opcode = at(BTH_AT, "BTH", "opcode")
        ts = at(BTH_AT, "BTH", "ts")
        left = spec.UDP_BYTES + spec.BTH_BYTES + (note.ext_words << 2)
        m.d.comb += [
            d.plane.eq(self.plane),
            d.trimmed.eq(note.trimmed),
            d.ce.eq(ip("ecn") == Ecn.CE),
            d.ipv4.eq(note.ipv4),
            d.src_ip.eq(ip("src_ip")),
            d.dst_ip.eq(ip("dst_ip")),
            d.ev.eq(Mux(note.ipv4, sport, Mux(self.ev_swap, Cat(sport, label), Cat(label, sport)))),
            # Of a trimmed packet: what is left of it, whatever its length field says.
            d.udp_len.eq(Mux(note.trimmed == NOT_TRIMMED, at(UDP_AT, "UDP", "udp_length"), left)),
            d.plen.eq(note.plen),
            d.ts.eq(ts),
        ]
        m.d.comb += [d[name].eq(at(BTH_AT, "BTH", name)) for name in ("opcode", "pad", "pkey", "dest_qp", "a", "rtx", "psn")]

        def fields(header: str, further: int) -> dict[str, Value]:
            return {field.name: at(EXT_AT, header, field.name, further) for field in spec.HEADERS[header] if field.name and not field.fixed}

        # What follows the BTH of a data packet; the TSETH may be missing.
        after = [spec.header_bytes("METH") + ts_set * spec.header_bytes("TSETH") for ts_set in (0, 1)]
        reth = [fields("RETH", at_byte) for at_byte in after]
        imm = [fields("IMMDT", at_byte + spec.header_bytes("RETH")) for at_byte in after]
        has_imm = (opcode == Opcode.WRITE_LAST_IMM) | (opcode == Opcode.WRITE_ONLY_IMM)
        data = fields("METH", 0)
        data |= {name: Mux(ts, value, 0) for name, value in fields("TSETH", spec.header_bytes("METH")).items()}
        data |= {name: Mux(ts, reth[1][name], reth[0][name]) for name in reth[0]}
        data |= {name: Mux(has_imm, Mux(ts, imm[1][name], imm[0][name]), 0) for name in imm[0]}

        def whole(headers: tuple[str, ...], values: dict[str, Value]) -> Value:
            """The bits of header_layout(*headers)."""
            named = [field for header in headers for field in spec.HEADERS[header] if field.name]
            return Cat(values[field.name] if field.name in values else Const(0, field.bits) for field in named)

        ext = whole(("METH", "TSETH", "RETH", "IMMDT"), data)
        for op in (Opcode.SACK, Opcode.NACK, Opcode.ACK, Opcode.PROBE):
            values: dict[str, Value] = {}
            further = 0
            for header in spec.extensions(op, 0):
                values |= fields(header, further)
                further += spec.header_bytes(header)
            ext = Mux(opcode == op, whole(spec.extensions(op, 0), values), ext)
        m.d.comb += d.ext.as_value().eq(ext)
        return m
