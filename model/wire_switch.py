"""What switches and test fabrics do to frames: set DSCP and ECN, trim. Lengths and checksums follow as a real switch would have them."""

from __future__ import annotations

from .spec import BTH_BYTES, DATA_OPCODES, ETH_BYTES, ETHERTYPE_IPV4, IPV4_BYTES, IPV6_BYTES, UDP_BYTES, Dscp, extension_bytes
from .wire import DEFAULT_CONFIG, WireConfig, ipv4_checksum

_TS_BIT = 0x10  # in BTH byte 8


def _is_ipv4(frame: bytes | bytearray) -> bool:
    return int.from_bytes(frame[12:14], "big") == ETHERTYPE_IPV4


def _with_checksum(frame: bytearray) -> bytes:
    if _is_ipv4(frame):
        frame[24:26] = b"\0\0"
        frame[24:26] = ipv4_checksum(bytes(frame[ETH_BYTES : ETH_BYTES + IPV4_BYTES])).to_bytes(2, "big")
    return bytes(frame)


def remark(frame: bytes, dscp: int | None = None, ecn: int | None = None) -> bytes:
    """The frame with another DSCP (6 bits) and/or ECN value (2 bits, spec.Ecn); the IPv4 checksum follows. For frames that build() made."""
    out = bytearray(frame)
    traffic = out[15] if _is_ipv4(frame) else (out[14] & 15) << 4 | out[15] >> 4
    traffic = (traffic >> 2 if dscp is None else dscp) << 2 | (traffic & 3 if ecn is None else ecn)
    if _is_ipv4(frame):
        out[15] = traffic
    else:
        out[14], out[15] = out[14] & 0xF0 | traffic >> 4, (traffic & 15) << 4 | out[15] & 15
    return _with_checksum(out)


def trim(
    frame: bytes, last_hop: bool = False, keep: int | None = None, cut_lengths: bool = False, config: WireConfig = DEFAULT_CONFIG
) -> bytes:
    """The frame as a trimming switch forwards it: payload and ICRC gone, DSCP TRIMMED or TRIMMED_LASTHOP (MRC-REQ-031).

    ``keep``: bytes kept after the BTH (default: all extension headers). ``cut_lengths``: whether IP and UDP length tell what is left, or
    still the original. The frame must be one that :func:`model.wire.build` made; ValueError when it carries no data.
    """
    udp_at = ETH_BYTES + (IPV4_BYTES if _is_ipv4(frame) else IPV6_BYTES)
    bth_at = udp_at + UDP_BYTES
    if frame[bth_at] not in DATA_OPCODES:
        raise ValueError(f"opcode {frame[bth_at]:#x} is not trimmed by a switch")
    headers = extension_bytes(frame[bth_at], int(bool(frame[bth_at + 8] & _TS_BIT)))
    out = bytearray(frame[: bth_at + BTH_BYTES + (headers if keep is None else min(keep, headers))])
    if cut_lengths:
        left = len(out) - udp_at
        out[udp_at + 4 : udp_at + 6] = left.to_bytes(2, "big")
        if _is_ipv4(frame):
            out[16:18] = (left + IPV4_BYTES).to_bytes(2, "big")
        else:
            out[18:20] = left.to_bytes(2, "big")
    return remark(bytes(out), dscp=config.dscp[Dscp.TRIMMED_LASTHOP if last_hop else Dscp.TRIMMED])
