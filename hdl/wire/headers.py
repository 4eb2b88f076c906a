"""Where header fields lie in a frame, derived from tables: those of :mod:`model.spec` from the BTH on, those of the layers below here.

A vector of bytes is a :class:`Value` with byte 0 of the wire in its lowest 8 bits; fields are big-endian inside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Const, Value, ValueCastable, ValueLike

from model import spec
from model.spec import Field

# Tables of the layers below the BTH in the form of spec.HEADERS (IEEE 802.3, RFC 8200, RFC 791, RFC 768).
LOWER: dict[str, tuple[Field, ...]] = {
    "ETH": (Field("dmac", 48), Field("smac", 48), Field("ethertype", 16)),
    "IPV6": (Field("version", 4), Field("dscp", 6), Field("ecn", 2), Field("", 4), Field("flow_label", 16), Field("payload_length", 16),
             Field("protocol", 8), Field("hop_limit", 8), Field("src_ip", 128), Field("dst_ip", 128)),
    "IPV4": (Field("version", 4), Field("ihl", 4), Field("dscp", 6), Field("ecn", 2), Field("total_length", 16), Field("identification", 16),
             Field("", 1), Field("df", 1), Field("mf", 1), Field("fragment", 13), Field("hop_limit", 8), Field("protocol", 8),
             Field("checksum", 16), Field("src_ip", 32), Field("dst_ip", 32)),
    "UDP": (Field("sport", 16), Field("dport", 16), Field("udp_length", 16), Field("udp_checksum", 16)),
}  # fmt: skip

IP_AT = spec.ETH_BYTES
UDP_AT = {False: IP_AT + spec.IPV6_BYTES, True: IP_AT + spec.IPV4_BYTES}  # by "is IPv4"
BTH_AT = {ipv4: at + spec.UDP_BYTES for ipv4, at in UDP_AT.items()}
EXT_AT = {ipv4: at + spec.BTH_BYTES for ipv4, at in BTH_AT.items()}
KNOWN_OPCODES = tuple(op for op in spec.Opcode if op not in (spec.Opcode.ENDPOINT_REQUEST, spec.Opcode.ENDPOINT_RESPONSE))
MAX_HEADERS = EXT_AT[False] + max(spec.extension_bytes(op, 1) for op in KNOWN_OPCODES)  # bytes from the Ethernet header to the last extension


def table(name: str) -> tuple[Field, ...]:
    """Fields of header ``name``, most significant first. KeyError when there is none of that name."""
    return LOWER[name] if name in LOWER else spec.HEADERS[name]


def size(name: str) -> int:
    """Bytes of header ``name``."""
    return sum(field.bits for field in table(name)) // 8


def position(header: str, name: str) -> tuple[int, int]:
    """Distance in bits of field ``name`` from the start of ``header``, and its width."""
    at = 0
    for field in table(header):
        if field.name == name:
            return at, field.bits
        at += field.bits
    raise KeyError(f"header {header} has no field {name}")


def span(header: str, name: str) -> tuple[int, int]:
    """First byte and number of bytes that field ``name`` touches in ``header``."""
    at, bits = position(header, name)
    return at // 8, (at + bits - 1) // 8 - at // 8 + 1


def big_endian(vector: Value) -> Value:
    """The number that the bytes of ``vector`` spell, first byte most significant. Its own inverse."""
    return Cat(vector.word_select(i, 8) for i in reversed(range(len(vector) // 8)))


def field_of(vector: Value, header: str, name: str) -> Value:
    """Field ``name`` of ``header``, which starts at byte 0 of ``vector``."""
    first, count = span(header, name)
    return field_in(vector[8 * first : 8 * (first + count)], header, name)


def field_in(octets: Value, header: str, name: str) -> Value:
    """Field ``name`` of ``header`` from the bytes that it touches alone."""
    at, bits = position(header, name)
    first, count = span(header, name)
    end = 8 * (first + count) - at - bits
    return big_endian(octets)[end : end + bits]


def pack(headers: tuple[str, ...], values: Mapping[str, ValueLike]) -> Value:
    """The bytes of ``headers`` one after the other. Every field is sent from ``values``, reserved and fixed ones as their default.

    KeyError names a field without a value; values of other fields are not looked at.
    """
    parts: list[Value] = []
    for field in (field for header in headers for field in table(header)):
        if field.name and not field.fixed:
            value = values[field.name]
            number = value.as_value() if isinstance(value, ValueCastable) else Value.cast(value)
            parts.append((number + Const(0, field.bits))[: field.bits] if len(number) < field.bits else number[: field.bits])
        else:
            parts.append(Const(field.default, field.bits))
    return big_endian(Cat(reversed(parts)))
