"""Sizes of an instance and the configuration that the host writes, with the field names and units of ``hdl/layouts.py``.

Every class knows the widths of its fields (``FIELDS``, in the order of the layout, least significant first), packs into the integer of a
command's data words and back, and :meth:`Config.validate` says what is wrong with a configuration, why, and what would be right. The
hardware
takes any bits of the right width; ``validate`` is what a driver calls before it writes them.

The defaults are those of facts 4 to 7 (``spec.py``): base_rtt 12 us, reo_wnd = base_rtt, probe_time = 3 x base_rtt, sack_flush_time =
base_rtt / 2, T = 2^8 x 1.024 us, 3 linear and 4 exponential tries. MRC-REQ-050, MRC-REQ-051.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Self

from .spec import (
    DEFAULT_BASE_RTT_NS,
    DEFAULT_EXP_CNT,
    DEFAULT_LINEAR_CNT,
    DEFAULT_MAX_WIMM,
    DEFAULT_SACK_THRESHOLD,
    DEFAULT_TIMER_EXP,
    EXP_FOREVER,
    FIRST_QPN,
    HOP_LIMIT,
    MAX_TIMER_EXP,
    MPR_UNIT,
    MTUS,
    TICK_NS,
    UDP_PORT,
    Dscp,
    Health,
)

BASE_RTT_TICKS = -(-DEFAULT_BASE_RTT_NS // TICK_NS)  # 94
CMD_DATA_BITS = 512


class StepError(Exception):
    """A step that the rules do not allow in the present state: what was tried, and why it is illegal."""


def _need(ok: bool, what: str, why: str) -> None:
    if not ok:
        raise ValueError(f"{what}: {why}")


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of one NIC, the names of ``hdl.params.Params``; the defaults are the preset ``tiny``. ValueError when a size is wrong."""

    qps: int = 2
    planes: int = 2
    evs: int = 2  # per plane and QP
    active_evs: int = 1  # per plane, ACTIVE by default
    window: int = 128  # PSNs unretired per QP
    msg_slots: int = 16
    rq_entries: int = 16
    max_wimm: int = 32
    regions: int = 8
    mtu: int = 4096  # largest path MTU
    qpn_base: int = 0x100

    def __post_init__(self) -> None:
        for name in ("qps", "planes", "evs", "window", "msg_slots", "rq_entries", "max_wimm", "regions"):
            value = getattr(self, name)
            _need(isinstance(value, int) and _power_of_two(value), f"{name} = {value}", "it indexes a memory, so it must be a power of two")
        _need(self.qps <= 256, f"qps = {self.qps}", "1 to 256 are supported")
        _need(self.planes <= 8, f"planes = {self.planes}", "1 to 8 ports are supported")
        _need(self.evs * self.planes <= 256, f"evs = {self.evs}", "a record names an EV with 8 bits, so planes x evs <= 256")
        _need(1 <= self.active_evs <= self.evs, f"active_evs = {self.active_evs}", f"it must lie in 1..evs = {self.evs}")
        _need(128 <= self.window <= 4096, f"window = {self.window}", "128 to 4096 packets")
        _need(2 <= self.msg_slots <= 512, f"msg_slots = {self.msg_slots}", "2 to 512")
        _need(self.mtu in MTUS, f"mtu = {self.mtu}", f"one of {MTUS}")
        _need(self.qpn_base >= FIRST_QPN and self.qpn_base % self.qps == 0 and self.qpn_base + self.qps <= 1 << 24,
              f"qpn_base = {self.qpn_base:#x}", f"a multiple of qps = {self.qps}, above the reserved 0-2, within 24 bits")  # fmt: skip

    @property
    def total_evs(self) -> int:
        """EVs of one QP. EV index = plane x evs + index inside the plane."""
        return self.planes * self.evs


@dataclass(slots=True)
class Config:
    """Base of the configuration classes: widths, packing, checks."""

    FIELDS: ClassVar[tuple[tuple[str, int], ...]] = ()

    def pack(self) -> int:
        """The fields as one integer, the first one least significant. ValueError when one does not fit its width."""
        self.check_widths()
        out = at = 0
        for name, bits in self.FIELDS:
            out |= int(getattr(self, name)) << at
            at += bits
        return out

    @classmethod
    def unpack(cls, data: int) -> Self:
        """The configuration in the low bits of a command's data words; bits above the layout are ignored."""
        values, at = {}, 0
        for name, bits in cls.FIELDS:
            values[name] = (data >> at) & ((1 << bits) - 1)
            at += bits
        return cls(**values)

    def check_widths(self) -> None:
        """ValueError when a field does not fit its width."""
        for name, bits in self.FIELDS:
            value = getattr(self, name)
            _need(0 <= value < 1 << bits, f"{type(self).__name__}.{name} = {value}", f"it has {bits} bits: 0..{(1 << bits) - 1}")

    def validate(self, sizes: Sizes) -> None:
        """ValueError when the configuration makes no sense on an instance of these sizes."""
        self.check_widths()

    def copy(self) -> Self:
        """Another object with the same fields."""
        return type(self)(**{f.name: getattr(self, f.name) for f in fields(self)})


@dataclass(slots=True)
class GlobalConfig(Config):
    """Parameters of the whole NIC (``layouts.GLOBAL_CONFIG``). Times in ticks of 128 ns."""

    FIELDS: ClassVar[tuple[tuple[str, int], ...]] = (
        ("base_rtt", 16), ("reo_wnd", 16), ("probe_time", 16), ("nack_retx_time", 32), ("sack_threshold", 24), ("sack_flush_time", 16),
        ("oor_silent", 1), ("udp_port", 16), ("ev_swap", 1), ("dscp_no_trim", 6), ("dscp_trimmable", 6), ("dscp_trimmable_retx", 6),
        ("dscp_trimmed", 6), ("dscp_trimmed_lasthop", 6), ("dscp_control", 6), ("spray_in_order", 1), ("evidence_first_only", 1),
        ("cwnd_rule_below", 1), ("hop_limit", 8), ("local_ip6", 128), ("local_ip4", 32), ("local_mac", 48),
    )  # fmt: skip

    base_rtt: int = BASE_RTT_TICKS
    reo_wnd: int = BASE_RTT_TICKS  # loss evidence slack
    probe_time: int = 3 * BASE_RTT_TICKS  # without feedback until a tail probe
    nack_retx_time: int = 0  # hold after a resource NACK; 0 = T(1) / 4
    sack_threshold: int = DEFAULT_SACK_THRESHOLD  # bytes
    sack_flush_time: int = BASE_RTT_TICKS // 2  # 0 = off
    oor_silent: int = 0
    udp_port: int = UDP_PORT
    ev_swap: int = 0
    dscp_no_trim: int = int(Dscp.NO_TRIM)
    dscp_trimmable: int = int(Dscp.TRIMMABLE)
    dscp_trimmable_retx: int = int(Dscp.TRIMMABLE_RETX)
    dscp_trimmed: int = int(Dscp.TRIMMED)
    dscp_trimmed_lasthop: int = int(Dscp.TRIMMED_LASTHOP)
    dscp_control: int = int(Dscp.CONTROL)
    spray_in_order: int = 0  # 1: no pseudo-random order inside a plane
    evidence_first_only: int = 0  # 1: loss_evidence = first_only
    cwnd_rule_below: int = 0  # 1: may send while inflight < cwnd; 0: inflight + MTU <= cwnd
    hop_limit: int = HOP_LIMIT
    local_ip6: int = 0  # of plane 0; plane n adds n to the lowest byte (also the next two)
    local_ip4: int = 0
    local_mac: int = 0

    def validate(self, sizes: Sizes) -> None:
        self.check_widths()
        for name in ("base_rtt", "probe_time", "sack_threshold", "udp_port", "hop_limit"):
            _need(getattr(self, name) > 0, f"{name} = 0", "it must be at least 1")
        for name in ("base_rtt", "reo_wnd", "probe_time"):
            _need(getattr(self, name) < 1 << 15, f"{name} = {getattr(self, name)}", "16-bit ticks are compared signed: below 32768")
        classes = [self.dscp_no_trim, self.dscp_trimmable, self.dscp_trimmable_retx, self.dscp_control]
        for name in ("dscp_trimmed", "dscp_trimmed_lasthop"):
            _need(getattr(self, name) not in classes, f"{name} = {getattr(self, name)}", "a trimmed class needs a value of its own")
        _need(self.dscp_trimmed != self.dscp_trimmed_lasthop, "dscp_trimmed = dscp_trimmed_lasthop", "the two must differ")
        for name in ("local_ip6", "local_ip4", "local_mac"):
            _base_address(name, getattr(self, name), sizes)


@dataclass(slots=True)
class QpConfig(Config):
    """Connection parameters of one QP (``layouts.QP_CONFIG``)."""

    FIELDS: ClassVar[tuple[tuple[str, int], ...]] = (
        ("dest_qpn", 24), ("pkey", 16), ("ipv4", 1), ("mtu", 3), ("peer_ip", 128), ("peer_mac", 48), ("sq_psn", 24), ("rq_psn", 24),
        ("req_mpr", 16), ("rsp_mpr", 16), ("peer_max_wimm", 16), ("timer_exp", 5), ("linear_cnt", 3), ("exp_cnt", 5), ("cwnd", 24),
        ("path_credit", 16), ("ev_min_active", 8), ("lfsr_seed", 16), ("trim_nack", 1),
    )  # fmt: skip

    dest_qpn: int = FIRST_QPN
    pkey: int = 0xFFFF
    ipv4: int = 0
    mtu: int = 2  # MTU = 256 << mtu: 1024
    peer_ip: int = 0
    peer_mac: int = 0
    sq_psn: int = 0
    rq_psn: int = 0
    req_mpr: int = MPR_UNIT  # packets: the peer's receive window as configured
    rsp_mpr: int = MPR_UNIT  # packets: the window we offer
    peer_max_wimm: int = DEFAULT_MAX_WIMM
    timer_exp: int = DEFAULT_TIMER_EXP
    linear_cnt: int = DEFAULT_LINEAR_CNT
    exp_cnt: int = DEFAULT_EXP_CNT
    cwnd: int = 1 << 20  # bytes
    path_credit: int = 128  # packets; default_path_credit() gives the rule's value
    ev_min_active: int = 2  # of the whole QP; one per plane
    lfsr_seed: int = 0xACE1
    trim_nack: int = 1

    @property
    def mtu_bytes(self) -> int:
        """Path MTU in bytes of payload."""
        return 256 << self.mtu

    def validate(self, sizes: Sizes) -> None:
        self.check_widths()
        _need(self.dest_qpn >= FIRST_QPN, f"dest_qpn = {self.dest_qpn}", "QP numbers 0-2 are reserved")
        _need(self.mtu < len(MTUS) and self.mtu_bytes <= sizes.mtu, f"mtu = {self.mtu}",
              f"MTU = 256 << mtu, at most {sizes.mtu} on this instance: 0..{sizes.mtu.bit_length() - 9}")  # fmt: skip
        _need(1 <= self.req_mpr < 1 << 15, f"req_mpr = {self.req_mpr}", "1 to 32767 packets")
        _need(self.rsp_mpr % MPR_UNIT == 0 and 0 < self.rsp_mpr <= sizes.window, f"rsp_mpr = {self.rsp_mpr}",
              f"a multiple of {MPR_UNIT} up to the ring of {sizes.window} packets")  # fmt: skip
        _need(self.peer_max_wimm >= 1, "peer_max_wimm = 0", "at least 1, or no WriteIMM could ever be sent")
        _need(self.timer_exp <= MAX_TIMER_EXP, f"timer_exp = {self.timer_exp}", f"T = 2^t units, t = 0..{MAX_TIMER_EXP}")
        _need(self.exp_cnt <= EXP_FOREVER, f"exp_cnt = {self.exp_cnt}", f"0..{EXP_FOREVER}, {EXP_FOREVER} = for ever")
        _need(self.linear_cnt + self.exp_cnt >= 1, "linear_cnt = exp_cnt = 0", "at least one try")
        _need(self.cwnd >= self.mtu_bytes, f"cwnd = {self.cwnd}", f"at least one MTU ({self.mtu_bytes} bytes), or nothing can be sent")
        _need(self.path_credit >= 1, "path_credit = 0", "at least 1, or no new data can be sent")
        _need(self.ev_min_active <= sizes.total_evs, f"ev_min_active = {self.ev_min_active}", f"at most the {sizes.total_evs} EVs of a QP")
        _need(self.lfsr_seed != 0, "lfsr_seed = 0", "an LFSR that is 0 stays 0")
        _base_address("peer_ip", self.peer_ip, sizes)
        _base_address("peer_mac", self.peer_mac, sizes)
        _need(not self.ipv4 or self.peer_ip < 1 << 32, f"peer_ip = {self.peer_ip:#x}", "an IPv4 address has 32 bits")


@dataclass(slots=True)
class EvConfig(Config):
    """One EV of a QP (``layouts.EV_CONFIG``): 32-bit value, ACTIVE (1) or BACKUP (0), health (``spec.Health``)."""

    FIELDS: ClassVar[tuple[tuple[str, int], ...]] = (("value", 32), ("active", 1), ("health", 2))

    value: int = 0
    active: int = 0
    health: int = int(Health.DENIED)


@dataclass(slots=True)
class Region(Config):
    """A memory region of the responder (``layouts.REGION_CONFIG``): VA range behind an R_Key, its host address, write right."""

    FIELDS: ClassVar[tuple[tuple[str, int], ...]] = (("rkey", 32), ("va", 64), ("length", 64), ("host", 64), ("write", 1), ("valid", 1))

    rkey: int = 0
    va: int = 0
    length: int = 0
    host: int = 0
    write: int = 0
    valid: int = 0

    def validate(self, sizes: Sizes) -> None:
        self.check_widths()
        for name in ("va", "host"):
            _need(getattr(self, name) + self.length <= 1 << 64, f"{name} = {getattr(self, name):#x}, length {self.length}",
                  "the region must not wrap over 2^64")  # fmt: skip


@dataclass(slots=True)
class WorkRequest(Config):
    """An RDMA Write, or a WriteIMM when ``imm_valid`` (``layouts.WORK_REQUEST``)."""

    FIELDS: ClassVar[tuple[tuple[str, int], ...]] = (
        ("imm_valid", 1), ("laddr", 64), ("raddr", 64), ("length", 32), ("rkey", 32), ("imm", 32), ("wr_id", 64),
    )  # fmt: skip

    imm_valid: int = 0
    laddr: int = 0
    raddr: int = 0
    length: int = 0
    rkey: int = 0
    imm: int = 0
    wr_id: int = 0


def _base_address(name: str, value: int, sizes: Sizes) -> None:
    _need((value & 0xFF) + sizes.planes <= 256, f"{name} = {value:#x}",
          f"plane n adds n to the lowest byte, which does not carry over: lowest byte <= {256 - sizes.planes}")  # fmt: skip


def default_path_credit(mpr: int, active_evs: int) -> int:
    """max(2, ceil(2 x mpr / configured ACTIVE EVs)), the default of QpConfig.path_credit (facts 5)."""
    _need(active_evs >= 1, f"active_evs = {active_evs}", "at least one ACTIVE EV")
    return max(2, -(-2 * mpr // active_evs))
