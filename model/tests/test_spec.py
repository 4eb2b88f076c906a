"""The header tables of spec.py against a second transcription of the facts, as bit positions; both codecs derive from those tables.

Failure mode R-06; MRC-REQ-003, MRC-REQ-004.
"""

from __future__ import annotations

from model import spec

# header: length in bytes, then name: (first bit counted from the most significant, bits). Names left out are reserved.
POSITIONS: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {
    "BTH": (12, {
        "opcode": (0, 8), "se": (8, 1), "m": (9, 1), "pad": (10, 2), "tver": (12, 4), "pkey": (16, 16), "var": (32, 8), "dest_qp": (40, 24),
        "a": (64, 1), "r": (65, 1), "rtx": (66, 1), "ts": (67, 1), "psn": (72, 24),
    }),
    "METH": (4, {"rqmsn": (0, 16), "msn": (16, 16)}),
    "TSETH": (4, {"tx_timestamp": (0, 16), "tsr": (16, 1), "ftype": (28, 4)}),
    "RETH": (16, {"va": (0, 64), "rkey": (64, 32), "dmalen": (96, 32)}),
    "IMMDT": (4, {"imm": (0, 32)}),
    "AETH": (4, {"syndrome": (0, 8), "aeth_msn": (8, 24)}),
    "SETH": (28, {
        "type": (0, 4), "nxt": (4, 5), "mflag": (9, 2), "pr": (14, 1), "ack_psn_offset": (16, 16), "entropy": (32, 32), "spdcid": (64, 16),
        "dpdcid": (80, 16), "cack_psn": (104, 24), "cc_type": (128, 4), "cc_flags": (132, 4), "mpr": (136, 8), "sack_offset": (144, 16),
        "sack_bitmap": (160, 64),
    }),
    "CC_STATE": (8, {
        "echo_timestamp": (0, 16), "ooo_count": (17, 15), "restore_cwnd": (32, 1), "rcv_cwnd_pen": (33, 7), "rcvd_bytes": (40, 24),
    }),
    "NETH": (20, {
        "type": (0, 4), "nxt": (4, 5), "nack_reason": (16, 8), "vendor": (24, 8), "entropy": (32, 32), "spdcid": (64, 16),
        "dpdcid": (80, 16), "nack_psn": (104, 24), "cc_type": (128, 4), "cc_flags": (132, 4), "echo_timestamp": (144, 16),
    }),
    "PETH": (16, {
        "type": (0, 4), "nxt": (4, 5), "vendor": (24, 8), "probe_id": (32, 16), "spdcid": (64, 16), "dpdcid": (80, 16),
        "tx_timestamp": (96, 16), "tsr": (112, 1), "ftype": (124, 4),
    }),
    "ERTH": (16, {
        "type": (0, 4), "nxt": (4, 5), "op": (14, 2), "vendor": (24, 8), "port_status_mask": (32, 32), "tx_timestamp": (96, 16),
        "tsr": (112, 1), "ftype": (124, 4),
    }),
    "EETH": (36, {"type": (0, 4), "nxt": (4, 5), "op": (12, 2), "tx_timestamp": (224, 16)}),
}  # fmt: skip


def test_header_tables() -> None:
    """R-06, MRC-REQ-004: every field stands where the facts put it, reserved bits fill the rest, fixed fields are these."""
    assert set(POSITIONS) == set(spec.HEADERS)
    for header, (size, fields) in POSITIONS.items():
        assert spec.header_bytes(header) == size, header
        found, position = {}, 0
        for field in spec.HEADERS[header]:
            if field.name:
                found[field.name] = (position, field.bits)
            position += field.bits
        assert found == fields, header
    fixed = {(f.name, f.default) for fields in spec.HEADERS.values() for f in fields if f.fixed}
    assert fixed == {("tver", 0), ("type", 0), ("nxt", 0), ("ftype", 1), ("cc_type", 0), ("cc_type", 2), ("cc_flags", 0)}
    signed = {f.name for fields in spec.HEADERS.values() for f in fields if f.signed}
    assert signed == {"ack_psn_offset", "sack_offset"}


def test_frame_sizes() -> None:
    """MRC-REQ-003, MRC-REQ-021: extension lengths of each opcode, with and without TSETH; the longest frame."""
    sizes = {0xC6: 20, 0xC7: 20, 0xC8: 20, 0xC9: 24, 0xCA: 20, 0xCB: 24, 0xD1: 4, 0xD8: 16, 0xD9: 36, 0xDC: 36, 0xDD: 20, 0xDE: 16}
    for opcode, size in sizes.items():
        assert spec.extension_bytes(opcode, 0) == size
        assert spec.extension_bytes(opcode, 1) == size + (4 if opcode in spec.DATA_OPCODES else 0)
    assert set(sizes) == set(spec.Opcode)
    assert spec.MAX_FRAME == 14 + 40 + 8 + 12 + 4 + 4 + 16 + 4 + 4096 + 4
