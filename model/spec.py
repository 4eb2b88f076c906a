"""Constants of MRC 1.0: opcodes, header tables, codes and defaults. The only place where they are written down.

Everything else derives from here: the byte codec of :mod:`model.wire`, the scapy layers of :mod:`model.layers`, the hardware's layouts
in ``hdl.layouts``, the documentation tables. Requirement ids in comments refer to ``docs/spec.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# --- Sizes of the wire -------------------------------------------------------------------------------------------------------------
PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
MSN_BITS = 16  # METH.MSN and METH.RQMSN; AETH.MSN has 24 bits
MTUS = (256, 512, 1024, 2048, 4096)
MAX_MESSAGE = (1 << 32) - 1
UDP_PORT = 4791  # default of a register; one table of the specification prints 4971
ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
IP_PROTO_UDP = 17
HOP_LIMIT = 64  # default hop limit (IPv6) or TTL (IPv4) of what we send
ETH_BYTES = 14  # no VLAN tag, no FCS
IPV4_BYTES = 20  # no options
IPV6_BYTES = 40
UDP_BYTES = 8
BTH_BYTES = 12
ICRC_BYTES = 4
ROUTING_BYTES = 40  # size of a packet in flight accounting = UDP length + 40, also over IPv4
RCVD_UNIT = 256  # SETH.rcvd_bytes counts units of 256 bytes
MPR_UNIT = 128  # SETH.mpr counts units of 128 packets
SACK_BITMAP_BITS = 64
TICK_NS = 128  # one tick of timestamps; eight ticks are one timer unit of 1.024 us
TIMER_UNIT_TICKS = 8
FIRST_QPN = 3  # QP numbers 0-2 are reserved
CONTROL_QPN = 2  # endpoint requests and responses
ANCIENT = 1 << 15  # a PSN further behind ePSN than this cannot be named by ack_psn_offset


class Opcode(IntEnum):
    """BTH.opcode values; bits 7:5 = 0b110 name the MRC transport."""

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMM = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMM = 0xCB
    ACK = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE = 0xDE


DATA_OPCODES = frozenset(range(0xC6, 0xCC))
IMM_OPCODES = frozenset({Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM})
END_OPCODES = frozenset({Opcode.WRITE_LAST, Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM})


@dataclass(frozen=True)
class Field:
    """One header field: ``name`` (empty for reserved bits, sent as 0, ignored on receipt), width in ``bits``, signedness.

    A ``fixed`` field is always sent as its default and no packet structure carries it: it is ignored on receipt, except BTH.tver,
    which must be the default.
    """

    name: str
    bits: int
    signed: bool = False
    default: int = 0
    fixed: bool = False


def _f(*fields: str) -> tuple[Field, ...]:
    out = []
    for text in fields:
        name, _, rest = text.partition(":")
        width, _, default = rest.partition("=")
        out.append(Field(name.lstrip("!"), int(width.rstrip("s")), width.endswith("s"), int(default or "0", 0), name.startswith("!")))
    return tuple(out)


# Header tables, network bit order (first field is the most significant). ``[!]name:width[s][=default]``,
# s = signed, ! = fixed.
BTH = _f("opcode:8", "se:1", "m:1", "pad:2", "!tver:4", "pkey:16=0xFFFF", "var:8", "dest_qp:24",
         "a:1", "r:1", "rtx:1", "ts:1", ":4", "psn:24")  # fmt: skip
METH = _f("rqmsn:16", "msn:16")
TSETH = _f("tx_timestamp:16", "tsr:1", ":11", "!ftype:4=1")
RETH = _f("va:64", "rkey:32", "dmalen:32")
IMMDT = _f("imm:32")
AETH = _f("syndrome:8", "aeth_msn:24")
SETH = _f("!type:4", "!nxt:5", "mflag:2", ":3", "pr:1", ":1", "ack_psn_offset:16s", "entropy:32", "spdcid:16", "dpdcid:16",
          ":8", "cack_psn:24", "!cc_type:4", "!cc_flags:4", "mpr:8", "sack_offset:16s", "sack_bitmap:64")  # fmt: skip
CC_STATE = _f("echo_timestamp:16", ":1", "ooo_count:15", "restore_cwnd:1", "rcv_cwnd_pen:7", "rcvd_bytes:24")
NETH = _f("!type:4", "!nxt:5", ":7", "nack_reason:8", "vendor:8", "entropy:32", "spdcid:16", "dpdcid:16", ":8", "nack_psn:24",
          "!cc_type:4=2", "!cc_flags:4", ":8", "echo_timestamp:16")  # fmt: skip
PETH = _f("!type:4", "!nxt:5", ":7", ":8", "vendor:8", "probe_id:16", ":16", "spdcid:16", "dpdcid:16",
          "tx_timestamp:16", "tsr:1", ":11", "!ftype:4=1")  # fmt: skip
ERTH = _f("!type:4", "!nxt:5", ":5", "op:2", ":8", "vendor:8", "port_status_mask:32", ":32",
          "tx_timestamp:16", "tsr:1", ":11", "!ftype:4=1")  # fmt: skip
EETH = _f("!type:4", "!nxt:5", ":3", "op:2", ":2", ":16", ":32", ":32", ":32", ":32", ":32", ":32", "tx_timestamp:16", ":16", ":32")

HEADERS: dict[str, tuple[Field, ...]] = {
    "BTH": BTH, "METH": METH, "TSETH": TSETH, "RETH": RETH, "IMMDT": IMMDT, "AETH": AETH, "SETH": SETH, "CC_STATE": CC_STATE,
    "NETH": NETH, "PETH": PETH, "ERTH": ERTH, "EETH": EETH,
}  # fmt: skip

# Headers that follow the BTH, in order. "TSETH?" is present when BTH.ts is set.
EXTENSIONS: dict[Opcode, tuple[str, ...]] = {
    Opcode.WRITE_FIRST: ("METH", "TSETH?", "RETH"),
    Opcode.WRITE_MIDDLE: ("METH", "TSETH?", "RETH"),
    Opcode.WRITE_LAST: ("METH", "TSETH?", "RETH"),
    Opcode.WRITE_LAST_IMM: ("METH", "TSETH?", "RETH", "IMMDT"),
    Opcode.WRITE_ONLY: ("METH", "TSETH?", "RETH"),
    Opcode.WRITE_ONLY_IMM: ("METH", "TSETH?", "RETH", "IMMDT"),
    Opcode.ACK: ("AETH",),
    Opcode.ENDPOINT_REQUEST: ("ERTH",),
    Opcode.ENDPOINT_RESPONSE: ("EETH",),
    Opcode.SACK: ("SETH", "CC_STATE"),
    Opcode.NACK: ("NETH",),
    Opcode.PROBE: ("PETH",),
}


def header_bytes(name: str) -> int:
    """Length of the header ``name`` in bytes."""
    bits = sum(f.bits for f in HEADERS[name])
    assert bits % 8 == 0, name
    return bits // 8


def extensions(opcode: int, ts: int) -> tuple[str, ...]:
    """Names of the headers between BTH and payload, in order; ``ts`` is BTH.ts. ValueError when the opcode is not MRC's."""
    return tuple(name.rstrip("?") for name in EXTENSIONS[Opcode(opcode)] if ts or not name.endswith("?"))


def extension_bytes(opcode: int, ts: int) -> int:
    """Bytes between BTH and payload; ``ts`` is BTH.ts. ValueError when the opcode is not MRC's."""
    return sum(header_bytes(name) for name in extensions(opcode, ts))


assert header_bytes("BTH") == BTH_BYTES
# The longest legal frame: IPv6, TSETH, ImmDt and a payload of the largest MTU (outer SRv6 headers are gone before the parser).
MAX_EXTENSION_BYTES = max(extension_bytes(opcode, 1) for opcode in Opcode)
MAX_DATA_EXTENSION_BYTES = max(extension_bytes(opcode, 1) for opcode in sorted(DATA_OPCODES))
MAX_FRAME = ETH_BYTES + IPV6_BYTES + UDP_BYTES + BTH_BYTES + MAX_DATA_EXTENSION_BYTES + MTUS[-1] + ICRC_BYTES


class MFlag(IntEnum):
    """SETH.M: what the responder saw on the forward path of the packet that caused the SACK."""

    NONE = 0
    SKIP_ONCE = 1
    ALWAYS_SKIP = 2


class NackReason(IntEnum):
    """NETH.nack_reason."""

    TRIMMED = 0x01
    TRIMMED_LASTHOP = 0x02
    NO_BITMAP = 0x06
    NO_PKT_BUFFER = 0x07
    NO_RESOURCE = 0x0A
    PSN_OOR_WINDOW = 0x0B
    UNEXP_EVENT = 0x19


class Syndrome(IntEnum):
    """AETH.syndrome: ACK always carries credit 0x1F (no end-to-end credits); NAK codes of the InfiniBand specification."""

    ACK = 0x1F
    NAK_INVALID_REQUEST = 0x61
    NAK_REMOTE_ACCESS = 0x62
    NAK_REMOTE_OPERATION = 0x63


class Dscp(IntEnum):
    """Default DSCP of each traffic class."""

    NO_TRIM = 0
    TRIMMABLE = 4
    TRIMMABLE_RETX = 8
    TRIMMED = 12
    TRIMMED_LASTHOP = 16
    CONTROL = 46


class Ecn(IntEnum):
    """ECN field of the IP header; data leaves as ECT0, a switch marks CE."""

    NOT_ECT = 0
    ECT1 = 1
    ECT0 = 2
    CE = 3


class QpState(IntEnum):
    """Life cycle of a queue pair."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    ERROR = 4


class Health(IntEnum):
    """Health of an EV; membership (ACTIVE or BACKUP) is a separate attribute."""

    GOOD = 0
    SKIP = 1
    ASSUMED_BAD = 2
    DENIED = 3


class WcStatus(IntEnum):
    """Status of a work completion."""

    SUCCESS = 0
    FLUSHED = 1
    RETRY_EXCEEDED = 2
    REMOTE_INVALID_REQUEST = 3  # NAK 0x61
    REMOTE_ACCESS = 4  # NAK 0x62
    REMOTE_OPERATION = 5  # NAK 0x63, NACK UNEXP_EVENT
    LOCAL_MEMORY = 6  # the host memory answered with an error
    LOCAL_QP_OPERATION = 7  # host moved the QP to ERROR, or the other owner did


class PostStatus(IntEnum):
    """Answer to a posted work request."""

    OK = 0
    FULL = 1  # no message slot (or receive entry) left on this QP
    BAD_QP = 2  # no such QP, EV, region or port
    BAD_STATE = 3  # the QP's state takes no requests
    BAD_LENGTH = 4  # a zero-length request
    BAD_OPCODE = 5
    BAD_VALUE = 6  # a QP parameter that this instance cannot have


class Drop(IntEnum):
    """Why a received frame was dropped (or an item of feedback ignored); one counter per cause, in order of the checks."""

    BAD_FRAME = 0  # the MAC flagged the frame (tuser), it is a runt below the Ethernet header, or it exceeds the buffer
    ETHERTYPE = 1
    IP_VERSION = 2
    IP_LENGTH = 3  # IP and UDP length fields that disagree with each other or with the frame
    IP_CHECKSUM = 4  # IPv4 header checksum
    NOT_UDP = 5  # next header is not UDP (or IPv4 options or fragments)
    UDP_PORT = 6
    ICRC = 7
    BTH_VERSION = 8
    OPCODE = 9
    SHORT = 10  # shorter than the opcode's headers + pad
    UNKNOWN_QP = 11
    QP_STATE = 12
    ADDRESS = 13  # source is not the QP's peer or destination is not us
    PKEY = 14
    ANCIENT = 15
    OUT_OF_WINDOW = 16
    TRIM_IGNORED = 17  # trimmed packet that asks for no NACK (capability off, or not a data opcode)
    DUPLICATE = 18  # not a drop of information: payload not written again
    NAKED = 19  # refused by a packet check; a NAK went out
    NO_RESOURCE = 20  # a resource NACK went out
    QP_ERROR = 21  # arrived for a QP in ERROR
    EV_UNMATCHED = 22  # feedback whose EV or record does not match
    SACK_FORGED = 23
    SACK_RANGE = 24  # cack_psn outside [unack_psn - 2^15, max_psn_sent]
    NACK_IGNORED = 25
    ACK_IGNORED = 26
    NO_PORT = 27  # an answer could not leave: no port is up
    PORT_DOWN = 28  # a frame queued for a port that went down


class Kind(IntEnum):
    """Kinds of commit records. The order is the fixed order of steps of one owner in one clock."""

    CONTROL = 0
    PORT = 1
    QP_ERROR = 2
    POST = 3
    SEND = 4
    DEPART = 5
    SACK = 6
    NACK = 7
    ACK = 8
    RETIRE = 9
    JUDGE = 10
    TIMEOUT = 11
    PROBE = 12
    EV_AGE = 13  # clears the valid bit of an EV's last matched tick before 16-bit ticks become ambiguous
    COMPLETE = 14
    RECEIVE = 15
    ADVANCE = 16
    FLUSH = 17
    EMIT_ACK = 18
    EMIT_NACK = 19
    EMIT_SACK = 20
    RECV_COMPLETE = 21
    POST_RECV = 22


class Command(IntEnum):
    """Commands of the host (controller and application) to the NIC; each is answered with one status (:class:`PostStatus`)."""

    NOP = 0
    SET_GLOBAL = 1  # addresses and parameters of the whole NIC; refused unless every QP is in RESET or INIT
    SET_QP = 2  # connection parameters; INIT only
    SET_EV = 3  # value, membership and health of one EV; INIT only
    EV_STATE = 4  # controller: DENIED or back to GOOD; any state
    SET_REGION = 5  # memory region behind an R_Key; any time
    MODIFY = 6  # QP state
    POST = 7  # RDMA Write or WriteIMM
    POST_RECV = 8  # one receive entry (consumed by a WriteIMM)
    PORT = 9  # administrative state of one port


# --- Defaults of configurable values ---------------------------------------------------------------------------------------------------
DEFAULT_BASE_RTT_NS = 12_000
DEFAULT_SACK_THRESHOLD = 16384  # bytes (UET)
SACK_MIN_COUNT = 1024  # each accepted packet counts at least this many bytes
DEFAULT_MAX_WIMM = 32
DEFAULT_TIMER_EXP = 8  # T = 2^t units of 1.024 us
DEFAULT_LINEAR_CNT = 3
DEFAULT_EXP_CNT = 4
EXP_FOREVER = 25
MAX_TIMER_EXP = 24
PROBE_ANSWERS_TO_RECOVER = 3
EV_MATCH_MAX_AGE = 1 << 14  # ticks
LFSR_TAPS = (0, 2, 3, 5)  # bit positions whose XOR enters at bit 15 of the right-shifting Fibonacci LFSR: x^16 + x^14 + x^13 + x^11 + 1
