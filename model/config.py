"""Sizes of an instance and the configuration that the host writes, with the field names and units of ``hdl/layouts.py``."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import DEFAULT_EXP_CNT, DEFAULT_LINEAR_CNT, DEFAULT_SACK_THRESHOLD, DEFAULT_TIMER_EXP, HOP_LIMIT, UDP_PORT, Dscp, Health


class StepError(Exception):
    """A step that the rules do not allow in the present state: what was tried, and why it is illegal."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one NIC, the names of ``hdl.params.Params``; defaults are the preset ``tiny``."""

    qps: int = 2
    planes: int = 2
    evs: int = 2
    active_evs: int = 1
    window: int = 128
    msg_slots: int = 16
    rq_entries: int = 16
    max_wimm: int = 32
    regions: int = 8
    mtu: int = 4096
    qpn_base: int = 0x100


@dataclass(slots=True)
class GlobalConfig:
    """``layouts.GLOBAL_CONFIG``."""

    base_rtt: int = 94
    reo_wnd: int = 94
    probe_time: int = 282
    nack_retx_time: int = 0
    sack_threshold: int = DEFAULT_SACK_THRESHOLD
    sack_flush_time: int = 47
    oor_silent: int = 0
    udp_port: int = UDP_PORT
    ev_swap: int = 0
    dscp_no_trim: int = Dscp.NO_TRIM
    dscp_trimmable: int = Dscp.TRIMMABLE
    dscp_trimmable_retx: int = Dscp.TRIMMABLE_RETX
    dscp_trimmed: int = Dscp.TRIMMED
    dscp_trimmed_lasthop: int = Dscp.TRIMMED_LASTHOP
    dscp_control: int = Dscp.CONTROL
    spray_in_order: int = 0
    evidence_first_only: int = 0
    cwnd_rule_below: int = 0
    hop_limit: int = HOP_LIMIT
    local_ip6: int = 0
    local_ip4: int = 0
    local_mac: int = 0


@dataclass(slots=True)
class QpConfig:
    """``layouts.QP_CONFIG``."""

    dest_qpn: int = 0
    pkey: int = 0xFFFF
    ipv4: int = 0
    mtu: int = 0
    peer_ip: int = 0
    peer_mac: int = 0
    sq_psn: int = 0
    rq_psn: int = 0
    req_mpr: int = 128
    rsp_mpr: int = 128
    peer_max_wimm: int = 32
    timer_exp: int = DEFAULT_TIMER_EXP
    linear_cnt: int = DEFAULT_LINEAR_CNT
    exp_cnt: int = DEFAULT_EXP_CNT
    cwnd: int = 1 << 20
    path_credit: int = 128
    ev_min_active: int = 2
    lfsr_seed: int = 1
    trim_nack: int = 1


@dataclass(slots=True)
class EvConfig:
    """``layouts.EV_CONFIG``."""

    value: int = 0
    active: int = 0
    health: int = Health.DENIED


@dataclass(slots=True)
class Region:
    """``layouts.REGION_CONFIG``."""

    rkey: int = 0
    va: int = 0
    length: int = 0
    host: int = 0
    write: int = 0
    valid: int = 0


@dataclass(slots=True)
class WorkRequest:
    """``layouts.WORK_REQUEST``."""

    imm_valid: int = 0
    laddr: int = 0
    raddr: int = 0
    length: int = 0
    rkey: int = 0
    imm: int = 0
    wr_id: int = 0
