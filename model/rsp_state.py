"""State of the responder and what its steps return: plain records with the names of ``hdl/layouts.py`` and ``hdl/trace.py``.

Everything is a plain integer of the width of the layout, flags are 0 or 1, so that lockstep compares name by name. What a QP holds beside
the compared context (bitmaps, stash, queues) follows the context's fields in :class:`RspQp`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from .spec import DATA_OPCODES, Ecn
from .wire_packet import Packet

NOT_DROPPED = 0xFF  # value of ``drop`` in a record of a frame that was not dropped


@dataclass(slots=True)
class Rx:
    """A frame for the responder: ``layouts.rx`` with the fields of its extension headers flat (absent ones 0).

    ``known`` 0: DestQP is none of ours. ``addr_ok``, ``pkey_ok``: the address and P_Key checks against the QP's configuration.
    ``trimmed``: 1 TRIMMED, 2 TRIMMED_LASTHOP. ``udp_len`` is the frame's own; it is not read when trimmed.
    """

    opcode: int
    psn: int = 0
    plane: int = 0
    known: int = 1
    addr_ok: int = 1
    pkey_ok: int = 1
    trimmed: int = 0
    ce: int = 0
    ev: int = 0
    udp_len: int = 0
    a: int = 0
    rtx: int = 0
    ts: int = 0
    plen: int = 0
    rqmsn: int = 0
    msn: int = 0
    tx_timestamp: int = 0
    va: int = 0
    rkey: int = 0
    dmalen: int = 0
    imm: int = 0
    probe_id: int = 0

    @classmethod
    def of(cls, packet: Packet, plane: int, known: int = 1, addr_ok: int = 1, pkey_ok: int = 1) -> Rx:
        """The frame's fields as the QP check hands them on. ``packet`` carries data or is a probe, and arrived on ``plane``."""
        return cls(
            packet.opcode, packet.psn, plane, known, addr_ok, pkey_ok, packet.trimmed, int(packet.ecn == Ecn.CE), packet.ev,
            packet.udp_len, packet.a, packet.rtx, packet.ts if packet.opcode in DATA_OPCODES else 0, len(packet.payload), packet.rqmsn,
            packet.msn, packet.tx_timestamp, packet.va, packet.rkey, packet.dmalen, packet.imm, packet.probe_id,
        )  # fmt: skip


@dataclass(slots=True)
class Stash:
    """A WriteIMM that waits for its turn (``layouts.stash``)."""

    valid: int = 0
    imm: int = 0
    length: int = 0
    last_psn: int = 0


@dataclass(slots=True)
class Answer:
    """A pending SACK or NACK: what caused it (``layouts.answer``). ``reason`` 0: a SACK."""

    qp: int
    plane: int
    reason: int = 0
    soft: int = 0
    base_at_epsn: int = 0
    pr: int = 0
    probe_id: int = 0
    psn: int = 0
    mflag: int = 0
    ev: int = 0
    tick: int = 0


@dataclass(slots=True)
class RspQp:
    """One QP as responder. The first part is ``layouts.rsp_ctx``, field by field."""

    state: int = 0
    cack_psn: int = 0
    max_rcv_psn: int = 0
    right_edge: int = 0
    ooo_count: int = 0
    sweep: int = 0
    alt: int = 0
    rcvd_bytes: int = 0
    trigger_cnt: int = 0
    flush_on: int = 0
    flush_at: int = 0
    prev_ar: int = 0
    last_ev: int = 0
    last_tick: int = 0
    last_plane: int = 0
    last_psn: int = 0
    next_rqmsn: int = 0
    done_psn: int = 0
    done_msn: int = 0
    ack_valid: int = 0
    rq_head: int = 0
    rq_tail: int = 0
    nak: int = 0
    nak_psn: int = 0
    rev: list[int] = field(default_factory=list)  # per plane
    rev_time: list[int] = field(default_factory=list)
    rev_time_on: list[int] = field(default_factory=list)
    # Beside the context. Bitmaps: bit i stands for PSN cack_psn + 1 + i.
    rcvd: int = 0
    ends: int = 0  # recorded message ends
    imms: int = 0  # recorded ends of WriteIMMs
    due_ends: deque[tuple[int, int]] = field(default_factory=deque)  # ends in (done_psn, cack_psn]: PSN, 1 = WriteIMM
    stash: list[Stash] = field(default_factory=list)  # index RQMSN mod max_wimm
    recv: list[int] = field(default_factory=list)  # wr_id of receive entries, index counter mod rq_entries
    answers: deque[Answer] = field(default_factory=deque)
    ack_due: int = 0  # a transport ACK waits to leave; also while a NAK does: nak != 0 says which
    ack_plane: int = 0  # plane of the latest cause
    error_due: int = 0  # a step asked for QP_ERROR, which must come next
    a_in_order: int = 0  # the last accepted packet had A and was ePSN: ADVANCE still has to decide about prev_ar


CTX_FIELDS = tuple(f.name for f in fields(RspQp))[: [f.name for f in fields(RspQp)].index("rev_time_on") + 1]  # names of layouts.rsp_ctx


@dataclass(slots=True)
class RevRow:
    """What an EMIT reads of the requestor: the rows of the QP on ``plane`` (one bit an EV) and the values of its EVs."""

    plane: int
    good: int
    active: int
    denied: int
    values: Sequence[int]


@dataclass(slots=True)
class ControlOut:
    """Body of a CONTROL record, without the command's data."""

    op: int
    index: int
    status: int


@dataclass(slots=True)
class PortOut:
    """Body of a PORT record."""

    up: int


@dataclass(slots=True)
class QpErrorOut:
    """Body of a QP_ERROR record."""

    cause: int


@dataclass(slots=True)
class ReceiveOut:
    """Body of a RECEIVE record. ``write`` 1: the payload goes to host address ``addr`` (else 0)."""

    drop: int
    write: int = 0
    addr: int = 0
    no_resource: int = 0


@dataclass(slots=True)
class AdvanceOut:
    """Body of an ADVANCE record."""

    cack_psn: int


@dataclass(slots=True)
class FlushOut:
    """Body of a FLUSH record: empty."""


@dataclass(slots=True)
class RecvCompleteOut:
    """Body of a RECV_COMPLETE record. A completion goes to the host when ``imm_valid`` with SUCCESS, or when FLUSHED."""

    psn: int
    imm_valid: int
    status: int
    wr_id: int = 0
    length: int = 0
    imm: int = 0


@dataclass(slots=True)
class PostRecvOut:
    """Body of a POST_RECV record."""

    status: int
    wr_id: int


@dataclass(slots=True)
class EmitAckOut:
    """Body of an EMIT_ACK record. With ``dropped`` 1 everything after ``denied`` is 0, as in all emits."""

    dropped: int
    room: int
    plane: int
    ev_in_plane: int
    ev: int
    good: int
    active: int
    denied: int
    syndrome: int = 0
    psn: int = 0
    aeth_msn: int = 0


@dataclass(slots=True)
class EmitNackOut:
    """Body of an EMIT_NACK record."""

    dropped: int
    room: int
    plane: int
    ev_in_plane: int
    ev: int
    good: int
    active: int
    denied: int
    answer: Answer


@dataclass(slots=True)
class EmitSackOut:
    """Body of an EMIT_SACK record. ``ack_psn_offset`` as 16 unsigned bits, the probe id when the answer has pr = 1."""

    dropped: int
    room: int
    plane: int
    ev_in_plane: int
    ev: int
    good: int
    active: int
    denied: int
    answer: Answer
    cack_psn: int = 0
    sack_offset: int = 0
    sack_bitmap: int = 0
    ack_psn_offset: int = 0
    ooo_count: int = 0
    rcvd_bytes: int = 0
    mpr: int = 0
