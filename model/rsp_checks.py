"""Checks of a new data packet that need no order: lengths, and the region behind its R_Key (facts 3, packet checks)."""

from __future__ import annotations

from collections.abc import Sequence

from .config import Region
from .rsp_state import Rx
from .spec import Opcode

_ADDRESSES = 1 << 64


def lengths_ok(rx: Rx, mtu: int) -> bool:
    """Whether DMALen, payload and pad agree with the opcode at a path MTU of ``mtu`` bytes.

    First and Middle carry exactly one MTU, Last the rest of the message, Only the whole. Payload + pad is a multiple of 4 exactly when the
    UDP length is, as all headers are.
    """
    if rx.udp_len & 3 or rx.dmalen < 1:
        return False
    opcode = rx.opcode
    if opcode == Opcode.WRITE_FIRST:
        return rx.plen == mtu < rx.dmalen
    if opcode == Opcode.WRITE_MIDDLE:
        return rx.plen == mtu
    if opcode in (Opcode.WRITE_LAST, Opcode.WRITE_LAST_IMM):
        return rx.dmalen > mtu and rx.plen == (rx.dmalen - 1) % mtu + 1
    return rx.plen == rx.dmalen <= mtu


def host_address(regions: Sequence[Region], rkey: int, va: int, length: int) -> int | None:
    """Host address of [va, va + length) behind ``rkey``, or None when the access is refused.

    The low bits of the R_Key name the region (their number is a power of two), which must be valid, have exactly that R_Key, allow writes and hold the whole range, which must not wrap at 2^64
    (ending exactly there is no wrap).
    """
    region = regions[rkey % len(regions)]
    offset = va - region.va
    if not region.valid or region.rkey != rkey or not region.write or offset < 0 or offset + length > region.length or va + length > _ADDRESSES:
        return None
    return (region.host + offset) % _ADDRESSES
