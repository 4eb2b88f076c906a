"""What each step of the requestor returns: the outputs of the commit record of its kind (``hdl/trace.py``), by the same names.

A field that a step did not come to is 0: ``evi`` and ``credit`` of dropped feedback, ``evi`` of a SACK whose EV was not found. ``credit``
is
credit_used of that EV after the step. ``drop`` is a ``spec.Drop`` or 0xFF (not dropped).
"""

from __future__ import annotations

from dataclasses import dataclass

from .req_state import NOT_DROPPED


@dataclass(slots=True)
class ControlOut:
    """CONTROL: the answer to the host, a ``spec.PostStatus``."""

    status: int


@dataclass(slots=True)
class PortOut:
    """PORT: the mask of planes that are up from now on."""

    up: int


@dataclass(slots=True)
class QpErrorOut:
    """QP_ERROR: its cause (``spec.WcStatus``) and the message that ends with it."""

    cause: int
    msg: int


@dataclass(slots=True)
class PostOut:
    """POST: the answer to the host, and the message slot (0 unless OK)."""

    status: int
    slot: int = 0


@dataclass(slots=True)
class SendOut:
    """SEND: the packet."""

    rtx: int
    psn: int
    plane: int
    evi: int
    ev: int
    fallback: int
    opcode: int
    a: int
    laddr: int
    plen: int
    rqmsn: int
    msn: int
    va: int
    rkey: int
    dmalen: int
    imm: int
    send_tick: int
    credit: int


@dataclass(slots=True)
class DepartOut:
    """DEPART: whether the record (or probe slot) took the frame's timestamp."""

    applied: int


@dataclass(slots=True)
class SackOut:
    """SACK: bytes newly reported; EV of the path feedback."""

    drop: int = NOT_DROPPED
    newly: int = 0
    evi: int = 0
    ev_found: int = 0
    matched: int = 0


@dataclass(slots=True)
class NackOut:
    """NACK."""

    drop: int = NOT_DROPPED
    evi: int = 0
    credit: int = 0


@dataclass(slots=True)
class AckOut:
    """ACK or NAK."""

    drop: int = NOT_DROPPED


@dataclass(slots=True)
class RetireOut:
    """RETIRE of one PSN."""

    psn: int
    was_lost: int
    evi: int
    credit: int


@dataclass(slots=True)
class JudgeOut:
    """JUDGE of one PSN."""

    psn: int
    evi: int
    proved: int
    credit: int


@dataclass(slots=True)
class TimeoutOut:
    """TIMEOUT."""

    head_lost: int = 0
    evi: int = 0
    credit: int = 0


@dataclass(slots=True)
class ProbeOut:
    """PROBE: a probe to send, or (``send_tick`` 0) the EV probes ended because no EV is ASSUMED_BAD."""

    slot: int
    id: int = 0
    plane: int = 0
    evi: int = 0
    ev: int = 0
    send_tick: int = 0


@dataclass(slots=True)
class EvAgeOut:
    """EV_AGE of one EV."""

    evi: int


@dataclass(slots=True)
class CompleteOut:
    """COMPLETE: a work completion of message ``msg`` (its counter)."""

    msg: int
    status: int
    wr_id: int
    length: int
