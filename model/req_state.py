"""State of the requestor: plain slots dataclasses with the field names of ``hdl/layouts.py``, and what every step needs of them.

Everything is an integer of the width of the layout, flags are 0 or 1. Per-PSN bits (out, lost, sacked, evidence cover) are integers of W
bits,
bit = PSN mod W, where the hardware has rows of 64; W is ``Sizes.window``. Deadlines are 32-bit ticks compared as signed differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

from .config import QpConfig
from .path_events import EvEntry, Path
from .spec import (
    BTH_BYTES,
    ICRC_BYTES,
    MAX_TIMER_EXP,
    ROUTING_BYTES,
    TIMER_UNIT_TICKS,
    UDP_BYTES,
    Opcode,
    QpState,
    extension_bytes,
)

M16, M24, M32 = 0xFFFF, 0xFFFFFF, 0xFFFFFFFF
HALF24, HALF32 = 1 << 23, 1 << 31
NOT_DROPPED = 0xFF  # value of ``drop`` in the record of feedback that was not dropped
ALL64 = (1 << 64) - 1
# Bytes of a data packet in flight besides payload, pad and ImmDt: ts is always 1 on our data (MRC-REQ-061).
DATA_OVERHEAD = UDP_BYTES + BTH_BYTES + extension_bytes(Opcode.WRITE_ONLY, 1) + ICRC_BYTES + ROUTING_BYTES
IMM_BYTES = extension_bytes(Opcode.WRITE_ONLY_IMM, 1) - extension_bytes(Opcode.WRITE_ONLY, 1)


def s24(value: int) -> int:
    """``value`` mod 2^24 as a signed number."""
    value &= M24
    return value - (1 << 24) if value & HALF24 else value


def s16(value: int) -> int:
    """``value`` mod 2^16 as a signed number."""
    value &= M16
    return value - (1 << 16) if value & 0x8000 else value


def wire16(tick: int) -> int:
    """The 16-bit timestamp of a tick; 0 means "none" on the wire, so it is sent as 1 (MRC-REQ-062)."""
    return tick & M16 or 1


def due(now: int, deadline: int) -> bool:
    """Whether the 32-bit ``deadline`` is reached at tick ``now``."""
    return (now - deadline) & M32 < HALF32


def expiry_ticks(config: QpConfig, k: int) -> int:
    """T(k), the time to the k-th expiry in ticks: T = 2^t units, doubled for each k beyond linear_cnt, at most 2^24 units (MRC-REQ-090)."""
    return TIMER_UNIT_TICKS << min(config.timer_exp + max(0, k - config.linear_cnt), MAX_TIMER_EXP)


@dataclass(slots=True)
class ProbeSlot:
    """A probe whose answer is awaited (``layouts.probe_slot``)."""

    valid: int = 0
    id: int = 0
    evi: int = 0
    tick: int = 0


@dataclass(slots=True)
class Message:
    """An unfinished message (``layouts.message``), and its number of packets."""

    imm_valid: int = 0
    laddr: int = 0
    raddr: int = 0
    length: int = 0
    rkey: int = 0
    imm: int = 0
    wr_id: int = 0
    first_psn: int = 0
    last_psn: int = 0
    msn: int = 0
    rqmsn: int = 0
    packets: int = 0


@dataclass(slots=True)
class SendRecord:
    """What is remembered per sent PSN (``layouts.send_record``), and the packet's size, which the hardware derives from the message."""

    evi: int = 0
    tick: int = 0
    slot: int = 0
    end: int = 0
    rtx: int = 0
    size: int = 0


class Feedback(Protocol):
    """Fields of SACK, NACK and ACK that the requestor reads, with the names of the header tables. A ``wire_packet.Packet`` is one."""

    @property
    def psn(self) -> int: ...
    @property
    def syndrome(self) -> int: ...
    @property
    def mflag(self) -> int: ...
    @property
    def pr(self) -> int: ...
    @property
    def ack_psn_offset(self) -> int: ...
    @property
    def probe_id(self) -> int: ...
    @property
    def entropy(self) -> int: ...
    @property
    def cack_psn(self) -> int: ...
    @property
    def mpr(self) -> int: ...
    @property
    def sack_offset(self) -> int: ...
    @property
    def sack_bitmap(self) -> int: ...
    @property
    def echo_timestamp(self) -> int: ...
    @property
    def rcvd_bytes(self) -> int: ...
    @property
    def nack_reason(self) -> int: ...
    @property
    def nack_psn(self) -> int: ...


@dataclass(slots=True)
class FeedbackFields:
    """A plain :class:`Feedback`. ``ack_psn_offset`` and ``sack_offset`` may be given signed or as 16 bits; pr = 1 reads ``probe_id``."""

    psn: int = 0
    syndrome: int = 0
    mflag: int = 0
    pr: int = 0
    ack_psn_offset: int = 0
    probe_id: int = 0
    entropy: int = 0
    cack_psn: int = 0
    mpr: int = 0
    sack_offset: int = 0
    sack_bitmap: int = 0
    echo_timestamp: int = 0
    rcvd_bytes: int = 0
    nack_reason: int = 0
    nack_psn: int = 0


@dataclass(slots=True)
class ReqQp:
    """One QP as requestor. The fields up to ``tx_pending`` are ``layouts.req_ctx``; their meaning is in architecture.md."""

    state: int = int(QpState.RESET)
    next_psn: int = 0
    unack_psn: int = 0
    right_edge: int = 0
    post_psn: int = 0
    unretired: int = 0
    msg_tail: int = 0
    msg_send: int = 0
    msg_done: int = 0
    msg_head: int = 0
    send_pkt: int = 0
    next_msn: int = 0
    next_rqmsn: int = 0
    wimm_open: int = 0
    inflight: int = 0
    rcvd_seen: int = 0
    sent_total: int = 0
    timer_on: int = 0
    timer_deadline: int = 0
    expiry: int = 0
    retry: int = 0
    nack_block: int = 0
    nack_block_until: int = 0
    probe_on: int = 0
    probe_ref: int = 0
    want_probe: int = 0
    hold: int = 0
    hold_until: int = 0
    head_free: int = 0
    bad_probe_on: int = 0
    bad_probe_at: int = 0
    bad_probe_evi: int = 0
    probe_count: int = 0
    tail_slot: ProbeSlot = field(default_factory=ProbeSlot)
    ev_slot: ProbeSlot = field(default_factory=ProbeSlot)
    err_status: int = 0
    err_msg: int = 0
    tx_pending: int = 0
    # Configuration
    config: QpConfig = field(default_factory=QpConfig)
    # Path row and EVs
    path: Path = field(default_factory=lambda: Path(1))
    ev: list[EvEntry] = field(default_factory=list)
    # Rings
    messages: list[Message] = field(default_factory=list)  # by counter mod msg_slots
    records: list[SendRecord] = field(default_factory=list)  # by PSN mod W; kept over RESET, as a memory is
    window: int = 128  # W
    # Bits by PSN mod W
    out: int = 0
    lost: int = 0
    sacked: int = 0  # a SACK said received; still out or lost
    cover: int = 0  # evidence: PSNs covered by the SACK that the row remembers
    ts: list[int] = field(default_factory=list)  # evidence: echoed timestamp, one a row of 64
    # Derived, for speed only
    oldest: int = 0  # oldest unretired PSN, next_psn if there is none
    judge_rows: int = 0  # rows whose evidence may name a lost PSN
    matched: int = 0  # EVs with match_valid
    age_at: int = 0  # no EV_AGE is due before this tick (not masked)
    fault: tuple[int, int] | None = None  # cause and message of the QP_ERROR step that must follow

    def usable(self, psn: int) -> bool:
        """Whether the record of ``psn`` may be used: the W newest sent PSNs (MRC-REQ-066)."""
        return (self.next_psn - 1 - psn) & M24 < self.window

    def is_value(self, evi: int, entropy: int) -> bool:
        """Whether an echoed entropy is the EV's value; over IPv4 only the low 16 bits travel (MRC-REQ-082)."""
        return not (self.ev[evi].value ^ entropy) & (M16 if self.config.ipv4 else M32)

    def bit(self, psn: int) -> int:
        """The bit of ``psn`` in out, lost, sacked and cover."""
        return 1 << (psn & self.window - 1)

    def ring(self, start: int, count: int) -> int:
        """Bits of the ``count`` PSNs from ``start`` on (0 <= count <= W)."""
        bits = ((1 << count) - 1) << (start & self.window - 1)
        return (bits | bits >> self.window) & (1 << self.window) - 1

    def acked_bits(self) -> int:
        """Unretired PSNs that are acknowledged, cumulatively or by a SACK, beside bits of PSNs that are retired already."""
        behind = (self.unack_psn + 1 - self.oldest) & M24
        return self.sacked | self.ring(self.oldest, behind) if 0 < behind < HALF24 else self.sacked

    def retire_bits(self) -> int:
        """PSNs that await RETIRE."""
        return (self.out | self.lost) & self.acked_bits()

    def is_acked(self, psn: int) -> bool:
        """Whether the usable ``psn`` is acknowledged."""
        return (self.unack_psn - psn) & M24 < HALF24 or bool(self.sacked >> (psn & self.window - 1) & 1)

    def psns(self, bits: int) -> list[int]:
        """The unretired PSNs of ``bits``, oldest first."""
        at = self.oldest & self.window - 1
        bits = bits >> at | (bits & (1 << at) - 1) << self.window - at
        found = []
        while bits:
            low = bits & -bits
            found.append((self.oldest + low.bit_length() - 1) & M24)
            bits ^= low
        return found

    def first(self, bits: int) -> int:
        """The oldest unretired PSN of ``bits`` (not 0)."""
        at = self.oldest & self.window - 1
        high = bits >> at
        if high:
            return (self.oldest + (high & -high).bit_length() - 1) & M24
        return (self.oldest + self.window - at + (bits & -bits).bit_length() - 1) & M24

    @property
    def idle(self) -> bool:
        """No message is unfinished."""
        return self.msg_done == self.msg_tail

    def message_of(self, counter: int) -> Message:
        """The message with that counter."""
        return self.messages[counter & len(self.messages) - 1]


CTX_FIELDS = tuple(f.name for f in fields(ReqQp))[: [f.name for f in fields(ReqQp)].index("tx_pending") + 1]
