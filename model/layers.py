"""Scapy layers for every MRC header, generated from the header tables of :mod:`model.spec`: for captures, and to check the byte codec.

Importing this module is enough: ``Ether(frame)`` then dissects MRC packets on UDP port 4791, ``.show()`` prints them, and building fills in
pad, fixed fields and ICRC::

    Ether() / IPv6(src=..., dst=..., fl=0x1234) / UDP(sport=0xABCD, chksum=0) / MRC(opcode=0xD1, dest_qp=0x211, psn=3) / AETH(syndrome=0x1F)

Packets on that port whose opcode is not MRC's (bits 7:5 = 0b110) stay with :mod:`scapy.contrib.roce`. The ICRC comes from there, not from
:mod:`model.wire`, so that the two check each other. Port 4791 is bound before every binding by source port: an EV may be any port number.
:func:`bind_port` adds another port. Source: facts 2; MRC-REQ-003, 006..009.
"""

from __future__ import annotations

from typing import Any

from scapy.contrib import roce
from scapy.fields import BitEnumField, BitField, FCSField, StrField, StrLenField, XBitField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, bind_top_down

from .spec import EXTENSIONS, HEADERS, ICRC_BYTES, UDP_PORT, Dscp, MFlag, NackReason, Opcode, Syndrome
from .spec import Field as SpecField

_ENUMS = {"opcode": Opcode, "mflag": MFlag, "nack_reason": NackReason, "syndrome": Syndrome}
_MRC_OPCODES = 0b110  # bits 7:5 of the opcode


class SignedBitField(BitField):
    """A two's complement integer of any width."""

    def i2m(self, pkt: Packet | None, x: int | None) -> int:
        """Value to bits."""
        return (x or 0) & (1 << int(self.size)) - 1

    def m2i(self, pkt: Packet | None, x: int) -> int:
        """Bits to value."""
        return x - (1 << int(self.size)) if x >> (int(self.size) - 1) else x


class IcrcField(FCSField):
    """The ICRC at the end of the packet; a packet of a trimmed DSCP class (default values) has none and reads None."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        """Take the last 4 bytes, unless the packet is trimmed."""
        ip = pkt.underlayer.underlayer if pkt.underlayer is not None else None
        traffic = (ip.tc if isinstance(ip, IPv6) else ip.tos) if isinstance(ip, (IP, IPv6)) else 0
        if traffic >> 2 in (Dscp.TRIMMED, Dscp.TRIMMED_LASTHOP) or len(s) < ICRC_BYTES:
            return s, None
        return super().getfield(pkt, s)


def _scapy_field(field: SpecField, index: int, default: int | None) -> Any:
    if field.name in _ENUMS:
        return BitEnumField(field.name, default, field.bits, {int(item): item.name for item in _ENUMS[field.name]})
    if field.signed:
        return SignedBitField(field.name, default, field.bits)
    kind = XBitField if field.bits >= 16 else BitField
    return kind(field.name or f"reserved{index}", default, field.bits)


def _fields(header: str, **defaults: int | None) -> list[Any]:
    return [_scapy_field(field, index, defaults.get(field.name, field.default)) for index, field in enumerate(HEADERS[header])]


class MRC(Packet):
    """The BTH of an MRC packet, and its ICRC. ``pad`` None: the right one; then build adds the pad bytes. ``icrc`` None: computed."""

    name = "MRC"
    fields_desc = _fields("BTH", pad=None) + [IcrcField("icrc", None, fmt="!I")]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kargs: Any) -> type[Packet]:
        """Leave packets of other transports to scapy.contrib.roce."""
        if _pkt and _pkt[0] >> 5 != _MRC_OPCODES:
            return roce.BTH
        return cls

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The header that the opcode asks for."""
        if self.opcode in EXTENSIONS:
            return LAYERS[EXTENSIONS[Opcode(self.opcode)][0]]
        return MRCPayload

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Pad and ICRC. Scapy appends the trailer field to ``pay``."""
        pay, trailer = pay[:-ICRC_BYTES], pay[-ICRC_BYTES:]
        body = pkt + pay
        if self.pad is None:
            pad = -len(pay) & 3
            body = body[:1] + bytes([body[1] | pad << 4]) + body[2:] + bytes(pad)
        return body + (self._icrc(body) if self.icrc is None else trailer)

    def _icrc(self, body: bytes) -> bytes:
        udp = self.underlayer
        if not isinstance(udp, UDP) or udp.underlayer is None:
            return bytes(ICRC_BYTES)
        ip, udp = udp.underlayer.copy(), udp.copy()
        ip.remove_payload()
        udp.remove_payload()
        stack = ip / udp / roce.BTH(body + bytes(ICRC_BYTES))
        return bytes(stack[roce.BTH].compute_icrc(body))


class _Extension(Packet):
    """A header behind the BTH; what comes next follows from the opcode (and BTH.ts) of the MRC layer below."""

    spec_name = ""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The next header, or the payload."""
        bth = _bth_below(self)
        if bth is not None and bth.opcode in EXTENSIONS:
            names = [name.rstrip("?") for name in EXTENSIONS[Opcode(bth.opcode)] if bth.ts or not name.endswith("?")]
            if self.spec_name in names[:-1]:
                return LAYERS[names[names.index(self.spec_name) + 1]]
        return MRCPayload


class METH(_Extension):
    """Message numbers of a data packet."""

    name = "METH"
    spec_name = "METH"
    fields_desc = _fields("METH")


class TSETH(_Extension):
    """Transmit time of a data packet; set ``ts=1`` in the MRC layer with it."""

    name = "TSETH"
    spec_name = "TSETH"
    fields_desc = _fields("TSETH")


class RETH(_Extension):
    """Destination of a data packet."""

    name = "RETH"
    spec_name = "RETH"
    fields_desc = _fields("RETH")


class ImmDt(_Extension):
    """Immediate data."""

    name = "ImmDt"
    spec_name = "IMMDT"
    fields_desc = _fields("IMMDT")


class AETH(_Extension):
    """Transport ACK or NAK."""

    name = "MRC AETH"
    spec_name = "AETH"
    fields_desc = _fields("AETH")


class SETH(_Extension):
    """Selective acknowledgement; a CC_STATE follows. ``ack_psn_offset`` holds the probe id (read as signed) when ``pr`` is set."""

    name = "SETH"
    spec_name = "SETH"
    fields_desc = _fields("SETH")


class CCState(_Extension):
    """Congestion state of the receiver."""

    name = "CC_STATE"
    spec_name = "CC_STATE"
    fields_desc = _fields("CC_STATE")


class NETH(_Extension):
    """Negative acknowledgement of one PSN."""

    name = "NETH"
    spec_name = "NETH"
    fields_desc = _fields("NETH")


class PETH(_Extension):
    """Reliability probe request."""

    name = "PETH"
    spec_name = "PETH"
    fields_desc = _fields("PETH")


class ERTH(_Extension):
    """Endpoint request."""

    name = "ERTH"
    spec_name = "ERTH"
    fields_desc = _fields("ERTH")


class EETH(_Extension):
    """Endpoint response."""

    name = "EETH"
    spec_name = "EETH"
    fields_desc = _fields("EETH")


def _bth_below(packet: Packet) -> MRC | None:
    below: Packet | None = packet
    while below is not None and not isinstance(below, MRC):
        below = below.underlayer
    return below


def _data_length(payload: Packet) -> int:
    bth = _bth_below(payload)
    return max(0, len(payload.original) - int(bth.pad or 0)) if bth is not None else len(payload.original)


_PAYLOAD_FIELDS: list[Any] = [StrLenField("data", b"", length_from=_data_length), StrField("pad", b"")]


class MRCPayload(Packet):
    """Payload and pad of a dissected packet. To build one, ``Raw`` or ``MRCPayload(data=...)`` does; leave ``pad`` to the MRC layer."""

    name = "MRC payload"
    fields_desc = _PAYLOAD_FIELDS


LAYERS: dict[str, type[Packet]] = {
    "METH": METH, "TSETH": TSETH, "RETH": RETH, "IMMDT": ImmDt, "AETH": AETH, "SETH": SETH, "CC_STATE": CCState, "NETH": NETH,
    "PETH": PETH, "ERTH": ERTH, "EETH": EETH,
}  # fmt: skip


def bind_port(port: int) -> None:
    """Dissect MRC and RoCEv2 on this UDP destination port (1 .. 65535) before any other binding."""
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is not a UDP port")
    UDP.payload_guess = [
        ({"dport": port}, MRC),
        *(entry for entry in UDP.payload_guess if entry[1] is not MRC or entry[0] != {"dport": port}),
    ]


bind_port(UDP_PORT)
bind_top_down(UDP, MRC, dport=UDP_PORT)
