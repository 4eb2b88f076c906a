"""Scapy layers against the vectors, scapy's RoCEv2 and the byte codec (failure modes R-06, R-07, I-03, I-04)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from scapy.contrib import roce
from scapy.layers.dns import DNS
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from model import layers, spec, wire, wire_switch
from model.layers import LAYERS, MRC, MRCPayload
from model.spec import Opcode
from model.wire import Packet

from .wire_cases import ROCE_ACK, SHAPES, VECTORS, header_fields, packets, unique_packet

ETHER = f"{Packet().dmac:012x}{Packet().smac:012x}86dd"


def mac(value: int) -> str:
    """An Ethernet address as text."""
    return value.to_bytes(6, "big").hex(":")


def to_scapy(packet: Packet) -> Any:
    """The packet as scapy layers: header by header from the tables, ICRC, pad and lengths left to scapy."""
    tos = packet.dscp << 2 | packet.ecn
    if packet.ipv4:
        ip: Any = IP(
            src=str(IPv4Address(packet.src_ip)), dst=str(IPv4Address(packet.dst_ip)), tos=tos, ttl=packet.hop_limit, id=0, flags="DF"
        )
        sport = packet.ev & 0xFFFF
    else:
        ip = IPv6(
            src=str(IPv6Address(packet.src_ip)), dst=str(IPv6Address(packet.dst_ip)), tc=tos, fl=packet.ev & 0xFFFF, hlim=packet.hop_limit
        )
        sport = packet.ev >> 16
    stack = Ether(src=mac(packet.smac), dst=mac(packet.dmac)) / ip / UDP(sport=sport, chksum=0)
    for name in ("BTH", *spec.extensions(packet.opcode, packet.ts)):
        values = {f.name: getattr(packet, f.name) for f in spec.HEADERS[name] if f.name and not f.fixed and f.name != "pad"}
        if values.get("pr"):
            values["ack_psn_offset"] = packet.probe_id
        stack /= MRC(**values) if name == "BTH" else LAYERS[name](**values)
    return stack / Raw(packet.payload) if packet.payload else stack


def test_roce_vector_stays_with_roce() -> None:
    """R-07, MRC-REQ-008: the RoCEv2 vector, dissected and built by scapy.contrib.roce although MRC is bound to the port."""
    frame = bytes.fromhex(ETHER) + ROCE_ACK
    packet = Ether(frame)
    assert packet.haslayer(roce.BTH) and packet.haslayer(roce.AETH) and not packet.haslayer(MRC)
    assert bytes(packet) == frame
    del packet[roce.BTH].icrc
    assert bytes(packet) == frame
    assert wire.icrc(ROCE_ACK[:-4]).to_bytes(4, "little") == ROCE_ACK[-4:]


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str) -> None:
    """Built from fields, dissected, and built again from what was dissected with the ICRC left out.

    R-07, MRC-REQ-003, MRC-REQ-004, MRC-REQ-009.
    """
    octets, packet = VECTORS[name]
    frame = bytes.fromhex(ETHER) + octets
    assert bytes(to_scapy(packet)) == frame
    seen = Ether(frame)
    assert bytes(seen) == frame and not seen.haslayer(Raw)
    seen[MRC].icrc = None
    assert bytes(seen) == frame


@pytest.mark.parametrize(("opcode", "ts"), SHAPES)
@pytest.mark.parametrize("ipv4", [False, True])
def test_every_field(opcode: Opcode, ts: int, ipv4: bool) -> None:
    """Every field of every header carries its own value through both codecs and both ways.

    R-06, R-07, MRC-REQ-003, MRC-REQ-004, MRC-REQ-010.
    """
    payload = bytes(range(1, 12)) if opcode in spec.DATA_OPCODES else b""
    packet = unique_packet(opcode, ts, ipv4=ipv4, src_ip=0x0A000001, dst_ip=0x0A000002, ev=0x1234, payload=payload)
    frame = wire.build(packet)
    assert bytes(to_scapy(packet)) == frame
    seen = Ether(frame)
    for name in spec.extensions(opcode, ts):
        assert seen.haslayer(LAYERS[name]), name
        assert len(LAYERS[name]()) == spec.header_bytes(name)
    for field in header_fields(opcode, ts):
        expected = getattr(packet, field.name)
        if field.name == "ack_psn_offset" and packet.pr:
            expected = packet.probe_id
        layer = next(seen[LAYERS.get(n, MRC)] for n in ("BTH", *spec.extensions(opcode, ts)) if field in spec.HEADERS[n])
        assert layer.getfieldval(field.name) == expected, field.name
    assert (seen[MRCPayload].data if payload else b"") == payload
    assert bytes(seen) == frame


@settings(max_examples=300, deadline=None)
@given(packets())
def test_codecs_agree(packet: Packet) -> None:
    """R-06, R-07, I-04: on random packets the codecs make the same bytes, and parse gives the packet back."""
    frame = wire.build(packet)
    assert bytes(to_scapy(packet)) == frame
    assert wire.parse(frame) == packet
    assert bytes(Ether(frame)) == frame


@pytest.mark.parametrize("length", range(1, 9))
def test_pad(length: int) -> None:
    """I-03, MRC-REQ-006: pad bytes follow the payload, BTH.pad counts them, the dissected payload has only real bytes."""
    packet = Packet(opcode=Opcode.WRITE_ONLY, payload=bytes([0xEE]) * length, dmalen=length)
    seen = Ether(wire.build(packet))
    assert bytes(to_scapy(packet)) == bytes(seen)
    assert (seen[MRC].pad, seen[MRCPayload].data, seen[MRCPayload].pad) == (-length % 4, b"\xee" * length, bytes(-length % 4))


def test_source_port_of_another_protocol() -> None:
    """An EV may be any number: a source port that scapy binds to another protocol does not hide the packet."""
    assert isinstance(Ether(bytes(Ether(dst=mac(1)) / IPv6(dst="::1") / UDP(sport=53, dport=9) / DNS())).lastlayer(), DNS)
    assert UDP.payload_guess[0][1] is MRC
    for sport in (53, 123, 4789, 5353):
        assert Ether(wire.build(Packet(opcode=Opcode.ACK, syndrome=0x1F, ev=sport << 16))).haslayer(layers.AETH), sport


def test_trimmed_packet_has_no_icrc() -> None:
    """MRC-REQ-031: the headers of a trimmed packet are dissected to their end; nothing of them is taken for an ICRC."""
    packet = unique_packet(Opcode.WRITE_LAST_IMM, 1, payload=bytes(64))
    seen = Ether(wire_switch.trim(wire.build(packet), cut_lengths=True))
    assert seen[layers.ImmDt].imm == packet.imm and seen[MRC].icrc is None


def test_show_names_and_other_port() -> None:
    """The printout names opcodes and reasons; another port can be bound."""
    text = str(Ether(bytes.fromhex(ETHER) + VECTORS["nack"][0]).show(dump=True))
    assert "NACK" in text and "TRIMMED" in text
    frame = wire.build(Packet(opcode=Opcode.PROBE, probe_id=7, udp_dport=4971))
    assert not Ether(frame).haslayer(MRC)
    before = UDP.payload_guess
    try:
        layers.bind_port(4971)
        assert Ether(frame)[layers.PETH].probe_id == 7
    finally:
        UDP.payload_guess = before
    with pytest.raises(ValueError, match="not a UDP port"):
        layers.bind_port(0)


def test_unknown_opcode_and_stumps_do_not_raise() -> None:
    """Dissection of an unknown MRC opcode, and of frames cut anywhere behind the Ethernet header, never raises."""
    frame = bytearray(wire.build(unique_packet(Opcode.WRITE_ONLY_IMM, 1, payload=bytes(5))))
    for size in range(spec.ETH_BYTES, len(frame)):
        Ether(bytes(frame[:size]))
    frame[62] = 0xC0
    assert Ether(bytes(frame)).haslayer(MRC)
