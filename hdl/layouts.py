"""Layouts of headers, descriptors and contexts. Header layouts derive from the tables of :mod:`model.spec`.

Fields keep the names of the header tables. All descriptors travel on ``amaranth.lib.stream`` streams.
"""

from __future__ import annotations

from functools import cached_property

from amaranth.hdl import signed
from amaranth.lib import data

from hdl.params import Params
from model import spec


def header_layout(*names: str) -> data.StructLayout:
    """Named fields of one or several headers (reserved bits left out), each with the width and signedness of the wire."""
    fields: dict[str, object] = {}
    for name in names:
        for field in spec.HEADERS[name]:
            if field.name:
                fields[field.name] = signed(field.bits) if field.signed else field.bits
    return data.StructLayout(fields)


GLOBAL_CONFIG = data.StructLayout({
    "base_rtt": 16,  # ticks of 128 ns
    "reo_wnd": 16,  # ticks; loss evidence slack
    "probe_time": 16,  # ticks without feedback until a tail probe
    "nack_retx_time": 32,  # ticks that a resource NACK holds retransmissions; 0 = T / 4 of the QP
    "sack_threshold": 24,  # bytes
    "sack_flush_time": 16,  # ticks; 0 = off
    "oor_silent": 1,  # packets ahead of the window are dropped without a NACK
    "udp_port": 16,
    "ev_swap": 1,  # 0: EV[31:16] is the UDP source port over IPv6
    "dscp_no_trim": 6, "dscp_trimmable": 6, "dscp_trimmable_retx": 6, "dscp_trimmed": 6, "dscp_trimmed_lasthop": 6, "dscp_control": 6,
    "spray_in_order": 1,  # 1 turns the pseudo-random order inside a plane off
    "evidence_first_only": 1,  # loss_evidence = first_only
    "cwnd_rule_below": 1,  # 1: may send while inflight < cwnd; 0: inflight + MTU <= cwnd
    "hop_limit": 8,
    "local_ip6": 128, "local_ip4": 32, "local_mac": 48,  # of plane 0; plane n adds n to the lowest byte
})  # fmt: skip

QP_CONFIG = data.StructLayout({
    "dest_qpn": 24, "pkey": 16,
    "ipv4": 1,
    "mtu": 3,  # MTU = 256 << mtu
    "peer_ip": 128,  # of the peer's plane 0 (IPv4: low 32 bits); plane n adds n to the lowest byte
    "peer_mac": 48,  # next hop on plane 0; plane n adds n to the lowest byte
    "sq_psn": 24, "rq_psn": 24,
    "req_mpr": 16,  # packets: the peer's receive window as configured
    "rsp_mpr": 16,  # packets: the window we offer; a multiple of 128 up to the ring
    "peer_max_wimm": 16,
    "timer_exp": 5, "linear_cnt": 3, "exp_cnt": 5,
    "cwnd": 24,  # bytes; constant until congestion control comes
    "path_credit": 16,
    "ev_min_active": 8,  # of the whole QP
    "lfsr_seed": 16,  # not 0
    "trim_nack": 1,  # answer trimmed packets with NACK TRIMMED
})  # fmt: skip

EV_CONFIG = data.StructLayout({"value": 32, "active": 1, "health": 2})
EV_STATE_CONFIG = data.StructLayout({"denied": 1})  # 1: DENIED, 0: back to GOOD
REGION_CONFIG = data.StructLayout({"rkey": 32, "va": 64, "length": 64, "host": 64, "write": 1, "valid": 1})
MODIFY_CONFIG = data.StructLayout({"state": 3})
PORT_CONFIG = data.StructLayout({"up": 1})
WORK_REQUEST = data.StructLayout({
    "imm_valid": 1,  # 1: WriteIMM
    "laddr": 64,  # host address of the source buffer, any alignment
    "raddr": 64,  # VA in the peer's region
    "length": 32, "rkey": 32, "imm": 32, "wr_id": 64,
})  # fmt: skip
RECV_REQUEST = data.StructLayout({"wr_id": 64})
CMD_DATA_BITS = 512


class Layouts:
    """Layouts that depend on the sizes of an instance."""

    def __init__(self, params: Params) -> None:
        self.p = params

    # --- commands ---------------------------------------------------------------------------------------------------------------
    @cached_property
    def cmd(self) -> data.StructLayout:
        """A host command. ``qp`` is the QP *index* as the host wrote it (it may be out of range); ``index`` an EV, region or port."""
        return data.StructLayout({"op": 8, "qp": 16, "index": 16, "data": CMD_DATA_BITS})

    @cached_property
    def cmd_status(self) -> data.StructLayout:
        """The answer: a PostStatus."""
        return data.StructLayout({"status": 8})

    # --- frames to descriptors ------------------------------------------------------------------------------------------------------
    @cached_property
    def ext(self) -> data.UnionLayout:
        """Extension headers after the BTH, absent ones zero."""
        return data.UnionLayout({
            "data": header_layout("METH", "TSETH", "RETH", "IMMDT"),
            "sack": header_layout("SETH", "CC_STATE"),
            "nack": header_layout("NETH"),
            "ack": header_layout("AETH"),
            "probe": header_layout("PETH"),
        })  # fmt: skip

    @cached_property
    def rx_frame(self) -> data.StructLayout:
        """A frame that passed the stateless checks: parser -> QP check. ``ev`` is rebuilt by the EV rule."""
        return data.StructLayout({
            "plane": self.p.plane_bits, "trimmed": 2, "ce": 1, "ipv4": 1, "src_ip": 128, "dst_ip": 128, "ev": 32, "udp_len": 16,
            "opcode": 8, "pad": 2, "pkey": 16, "dest_qp": 24, "a": 1, "rtx": 1, "ts": 1, "psn": 24,
            "plen": 13,  # payload bytes without pad
            "ext": self.ext,
        })  # fmt: skip

    @cached_property
    def rx(self) -> data.StructLayout:
        """A frame for an owner: QP check -> requestor (SACK, NACK, ACK) or responder (data, probe)."""
        return data.StructLayout({
            "qp": self.p.qp_bits, "known": 1, "addr_ok": 1, "pkey_ok": 1,
            "plane": self.p.plane_bits, "trimmed": 2, "ce": 1, "ev": 32, "udp_len": 16,
            "opcode": 8, "a": 1, "rtx": 1, "ts": 1, "psn": 24, "plen": 13, "ext": self.ext,
        })  # fmt: skip

    @cached_property
    def verdict(self) -> data.StructLayout:
        """What happens to the payload of each data frame, in order of arrival at the responder."""
        return data.StructLayout({"write": 1, "addr": 64, "plen": 13, "qp": self.p.qp_bits})

    # --- descriptors to frames ------------------------------------------------------------------------------------------------------
    @cached_property
    def tx(self) -> data.StructLayout:
        """A frame to send. Requestor: data and probe; responder: SACK, NACK, ACK. Timestamps of data and probes are filled at departure."""
        return data.StructLayout({
            "qp": self.p.qp_bits, "plane": self.p.plane_bits, "ev": 32, "evi": self.p.evi_bits,
            "opcode": 8, "a": 1, "rtx": 1, "psn": 24,
            "laddr": 64, "plen": 13,  # source of the payload
            "send_tick": 16,  # identifies this copy at departure
            "wr_stamp": 1,  # responder: ACKs and NAKs wait for the payload writes issued before them
            "ext": self.ext,
        })  # fmt: skip

    @cached_property
    def depart(self) -> data.StructLayout:
        """A data frame or probe of the requestor started to leave (or was lost in the NIC). Exactly one per requestor ``tx``."""
        return data.StructLayout({
            "qp": self.p.qp_bits, "probe": 1, "psn": 24, "evi": self.p.evi_bits, "send_tick": 16,
            "tick": 16,  # timestamp in the frame, never 0
            "dropped": 1,  # the port went down
            "read_error": 1,  # host memory answered with an error; nothing was sent
        })  # fmt: skip

    @cached_property
    def completion(self) -> data.StructLayout:
        """A work completion. ``recv`` 1: a receive entry consumed by a WriteIMM."""
        return data.StructLayout({"qp": self.p.qp_bits, "recv": 1, "status": 8, "wr_id": 64, "length": 32, "imm": 32})

    # --- path state ------------------------------------------------------------------------------------------------------------------
    @cached_property
    def plane_row(self) -> data.StructLayout:
        """EVs of one QP on one plane as bit rows. Health: good, skip, bad one-hot; none of them = DENIED."""
        e = self.p.evs
        return data.StructLayout({
            "active": e, "good": e, "skip": e, "bad": e,
            "full": e,  # credit_used >= path_credit
            "ptr": self.p.ev_bits + 1,  # next position, evs = wrap at the next scan
            "r": self.p.ev_bits,  # position i is EV index i XOR r
        })  # fmt: skip

    @cached_property
    def path(self) -> data.StructLayout:
        """Path row of one QP."""
        return data.StructLayout({
            "plane_ptr": self.p.plane_bits,  # plane that is offered the next packet first
            "lfsr": 16,
            "planes": data.ArrayLayout(self.plane_row, self.p.planes),
        })  # fmt: skip

    @cached_property
    def ev_entry(self) -> data.StructLayout:
        """Dynamic state of one EV. Ticks of 128 ns."""
        return data.StructLayout({
            "credit": 16, "match_valid": 1, "match_tick": 16, "match_time": 32, "probe_ok": 2, "rtt_valid": 1, "rtt_last": 16, "rtt_min": 16,
        })  # fmt: skip

    # --- requestor -------------------------------------------------------------------------------------------------------------------
    @cached_property
    def probe_slot(self) -> data.StructLayout:
        return data.StructLayout({"valid": 1, "id": 16, "evi": self.p.evi_bits, "tick": 16})

    @cached_property
    def req_ctx(self) -> data.StructLayout:
        """Protocol state of one QP as requestor (architecture.md, 'Requestor state')."""
        return data.StructLayout({
            "state": 3,
            "next_psn": 24, "unack_psn": 24, "right_edge": 24, "post_psn": 24, "unretired": 16,
            "msg_tail": 16, "msg_send": 16, "msg_done": 16, "msg_head": 16, "send_pkt": 24,
            "next_msn": 16, "next_rqmsn": 16, "wimm_open": 16,
            "inflight": signed(32), "rcvd_seen": 24, "sent_total": 32,
            "timer_on": 1, "timer_deadline": 32, "expiry": 8, "retry": 8,
            "nack_block": 1, "nack_block_until": 32,
            "probe_on": 1, "probe_ref": 32, "want_probe": 1,
            "hold": 1, "hold_until": 32, "head_free": 1,
            "bad_probe_on": 1, "bad_probe_at": 32, "bad_probe_evi": self.p.evi_bits,
            "probe_count": 15, "tail_slot": self.probe_slot, "ev_slot": self.probe_slot,
            "err_status": 8, "err_msg": 16,
            "tx_pending": 16,
        })  # fmt: skip

    @cached_property
    def message(self) -> data.StructLayout:
        """An unfinished message of the requestor."""
        return data.StructLayout({
            "imm_valid": 1, "laddr": 64, "raddr": 64, "length": 32, "rkey": 32, "imm": 32, "wr_id": 64,
            "first_psn": 24, "last_psn": 24, "msn": 16, "rqmsn": 16,
        })  # fmt: skip

    @cached_property
    def send_record(self) -> data.StructLayout:
        """What is remembered per sent PSN; state bits (outstanding, lost, sacked) live in bitmaps."""
        return data.StructLayout({"evi": self.p.evi_bits, "tick": 16, "slot": self.p.slot_bits, "end": 1, "rtx": 1})

    # --- responder -------------------------------------------------------------------------------------------------------------------
    @cached_property
    def rsp_ctx(self) -> data.StructLayout:
        """Protocol state of one QP as responder (architecture.md, 'Responder state')."""
        return data.StructLayout({
            "state": 3,
            "cack_psn": 24, "max_rcv_psn": 24, "right_edge": 24, "ooo_count": 16,
            "sweep": 24, "alt": 1, "rcvd_bytes": 32,
            "trigger_cnt": 24, "flush_on": 1, "flush_at": 32, "prev_ar": 1,
            "last_ev": 32, "last_tick": 16, "last_plane": self.p.plane_bits, "last_psn": 24,
            "next_rqmsn": 16, "done_psn": 24, "done_msn": 24, "ack_valid": 1,
            "rq_head": 16, "rq_tail": 16,
            "nak": 8, "nak_psn": 24,
            "rev": data.ArrayLayout(self.p.ev_bits, self.p.planes),
            "rev_time": data.ArrayLayout(32, self.p.planes), "rev_time_on": data.ArrayLayout(1, self.p.planes),
        })  # fmt: skip

    @cached_property
    def stash(self) -> data.StructLayout:
        """A WriteIMM that waits for its turn: index RQMSN mod max_wimm."""
        return data.StructLayout({"valid": 1, "imm": 32, "length": 32, "last_psn": 24})

    @cached_property
    def answer(self) -> data.StructLayout:
        """A pending SACK or NACK: what caused it."""
        return data.StructLayout({
            "qp": self.p.qp_bits, "plane": self.p.plane_bits,
            "reason": 8,  # NackReason, 0 = SACK
            "soft": 1,  # count, flush or prev_ar: may be absorbed by a later SACK
            "base_at_epsn": 1,  # probe or duplicate
            "pr": 1, "probe_id": 16, "psn": 24, "mflag": 2, "ev": 32, "tick": 16,
        })  # fmt: skip
