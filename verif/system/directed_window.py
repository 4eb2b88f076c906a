"""Directed scenarios: the send window, path credit, fair sharing, sinks that make everybody wait."""

from __future__ import annotations

from model.spec import DATA_OPCODES, Kind, Opcode
from verif.system.env import A, B, System
from verif.system.scenarios import scenario
from verif.system.watch import FEEDBACK, Watch, after, diff, need

START = 0xFFFF90


async def _stall(s: System, w: Watch, qp: int, expected: int) -> None:
    """Exactly ``expected`` packets leave, then nothing but probes."""
    await w.until(lambda: len(w.data(A, qp)) >= expected, f"the first {expected} packets of QP {qp}")
    await s.step(9000)
    psns = [f.packet.psn for f in w.data(A, qp)]
    need(len(psns) == expected == len(set(psns)), f"exactly {expected} packets of QP {qp}, then a stall", len(psns))


@scenario(presets=("tiny",))
async def window_full(s: System) -> None:
    """All answers withheld: exactly a window of packets leaves (128, whatever a larger mpr allows; 40 where mpr says so), then probes alone.

    The first answer opens the window; nothing is ever resent. MRC-REQ-072, 073, 095 and R-01, R-02, S-01, S-04.
    """
    w = Watch(s)
    await s.connect(0, psn_a=START, mtu=0, timer_exp=13, req_mpr=256)
    await s.connect(1, psn_a=START, mtu=0, timer_exp=13, req_mpr=40)
    withheld = s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None)
    for qp in (0, 1):
        s.write(A, 256 * 300, qp)
    await s.settle()
    await _stall(s, w, 0, 128)
    await _stall(s, w, 1, 40)
    for qp, count in ((0, 128), (1, 40)):
        context = w.context(w.now(A, qp=qp))
        need(context["next_psn"] == after(START, count) and context["unretired"] == count, "a whole window unretired", context)
        need(len(w.records(A, Kind.PROBE, qp, slot=0)) >= 1, "tail probes during the stall")
    need(s.native.rule_hits(withheld) > 0, "withheld answers")
    s.native.rule_clear(withheld)
    await s.done()
    edges = [(r.body["psn"], w.context(r)["right_edge"], w.context(r)["unack_psn"]) for r in w.records(A, Kind.SEND)]
    need(all(diff(edge, psn) >= 0 and diff(unack, psn) >= -128 for psn, edge, unack in edges), "no packet beyond right edge or ring")
    need(not w.data(A, rtx=1) and not w.records(A, Kind.JUDGE) and not w.records(A, Kind.TIMEOUT), "no retransmission, nothing judged lost")


@scenario(presets=("tiny",))
async def credit_used_up(s: System) -> None:
    """path_credit 4 on 4 EVs, SACKs lost: 16 packets leave, 4 on each EV; a probe, which takes no credit, starts it again.

    MRC-REQ-144, 145, 095.
    """
    w = Watch(s)
    await s.connect(active=2, mtu=0, path_credit=4, timer_exp=13)
    lost = s.native.rule("drop", nic=B, opcode=FEEDBACK, count=None)
    s.write(A, 256 * 60)
    await s.settle()
    await _stall(s, w, 0, 16)
    used = [f.packet.ev for f in w.data(A)]
    need(sorted(used.count(s.ev_value(A, 0, evi)) for evi in range(4)) == [4, 4, 4, 4], "4 packets on each of 4 EVs", used)
    need(all(w.row(A, plane)["full"] == 3 for plane in (0, 1)), "every EV out of credit")
    need(len(w.packets(A, Opcode.PROBE)) >= 1, "a probe without credit")
    s.native.rule_clear(lost)
    await s.done()
    need(all(r.body["credit"] <= 4 for r in w.records(A, Kind.SEND, rtx=0)), "no send beyond the credit")
    need(not w.data(A, rtx=1), "no retransmission")
    await w.rest()
    need(all(w.row(A, plane)["full"] == 0 for plane in (0, 1)), "every credit back")


@scenario(presets=("tiny",))
async def cwnd_full(s: System) -> None:
    """A congestion window of 4 packets: bytes in flight stay within it, every packet that fills it asks for a SACK. MRC-REQ-071."""
    w = Watch(s)
    cwnd = 4 * (256 + 88)
    await s.connect(mtu=0, cwnd=cwnd)
    s.write(A, 256 * 40)
    s.write(B, 256 * 40)
    await s.done()
    for nic in (A, B):
        flights = [w.context(r)["inflight"] for r in w.records(nic, Kind.SEND)]
        need(max(flights) <= cwnd + 88, "bytes in flight within the window", max(flights))
        need(max(flights) + 256 > cwnd - 88, "a window that was used", max(flights))
        need(any(f.packet.a for f in w.data(nic)[:-1]), "packets that ask for a SACK")


@scenario(presets=("tiny",))
async def fair_share(s: System) -> None:
    """Two QPs with much to send share the planes, packet by packet; both finish. MRC-REQ-133 and R-22."""
    w = Watch(s)
    for qp in (0, 1):
        await s.connect(qp, mtu=1, active=2)
    for qp in (0, 1):
        s.write(A, 512 * 110, qp)
    await s.done()
    owners = [f.packet.dest_qp - s.p.qpn_base for f in w.sent if f.nic == A and f.packet.opcode in DATA_OPCODES and not f.packet.rtx]
    both = owners[owners.index(1) :]  # from where both have work, until the first has none
    both = both[: 2 * min(both.count(0), both.count(1))][:160]
    share = both.count(0) / len(both)
    need(len(both) >= 80 and 0.35 <= share <= 0.65, "about half of the packets each while both have work", (len(both), share))
    planes = [f.plane for f in w.data(A)]
    need(0.4 <= planes.count(0) / len(planes) <= 0.6, "both planes used alike", planes.count(0) / len(planes))


@scenario(presets=("tiny",))
async def slow_sinks(s: System) -> None:
    """Sinks that wait for valid, slow links, gaps on every stream, slow memory with one burst at a time, slow polls. X-01, X-07, X-08, F-07, O-05."""
    for name, value in (("tx_lazy", 1), ("tx_period", 2), ("tx_stall", 300_000), ("rx_gap", 300_000), ("aw_gap", 300_000), ("w_gap", 300_000),
                        ("b_gap", 300_000), ("ar_gap", 300_000), ("r_gap", 300_000), ("axil_gap", 300_000), ("latency_min", 5),
                        ("latency_max", 60), ("outstanding", 1)):  # fmt: skip
        s.native.set(name, value)
    w = Watch(s)
    for qp in (0, 1):
        await s.connect(qp, mtu=2, timer_exp=10)
    for n in range(4):
        for nic in (A, B):
            for qp in (0, 1):
                s.write(nic, (1, 1024, 3000, 777)[n], qp, imm=n if n % 2 else None)
    await s.done()
    need(len(w.records(A, Kind.RECV_COMPLETE, imm_valid=1)) == len(w.records(B, Kind.RECV_COMPLETE, imm_valid=1)) == 4, "four immediates each way")
