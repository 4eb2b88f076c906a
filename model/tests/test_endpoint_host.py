"""Endpoints: host commands, errors that cross the wire, ports, bad frames, reuse after RESET (MRC-REQ-240 to 248, MRC-REQ-260..277)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from model.config import EvConfig, GlobalConfig, QpConfig, Region, Sizes, WorkRequest
from model.endpoint import Endpoint, EndpointError
from model.link import Faults, Link
from model.spec import Command, Drop, PostStatus, QpState, WcStatus
from model.wire import build
from model.wire_packet import Packet

from .pair import MEMORY, RKEY, SIZES, TARGET, Pair

VA = 0x5000_0000 + TARGET


def _statuses(pair: Pair, side: int, recv: int = 0) -> list[WcStatus]:
    pair.collect()
    return [c.status for c in pair.done[side] if c.recv == recv]


def _reconnect(pair: Pair, psn: int) -> None:
    """RESET both QPs 0 and connect them again at ``psn``."""
    for end in pair.ends:
        config = end.requestor.qp[0].config.copy()
        config.sq_psn = config.rq_psn = psn
        evs = [EvConfig(ev.value, 1, 0) for ev in end.requestor.qp[0].ev]
        assert end.command(Command.MODIFY, 0, 0, QpState.RESET, pair.link.now) == PostStatus.OK
        end.configure_qp(0, config, evs, pair.link.now)
    pair.done = [[], []]
    pair.posted = [[[], []], [[], []]]


@pytest.mark.parametrize("raddr, rkey, status, syndrome", [
    (VA, RKEY + 1, WcStatus.REMOTE_ACCESS, 0x62), (VA - 1, RKEY, WcStatus.REMOTE_ACCESS, 0x62),
    (0x5000_0000 + MEMORY - 100, RKEY, WcStatus.REMOTE_ACCESS, 0x62),
])  # fmt: skip
def test_refused_write(raddr: int, rkey: int, status: WcStatus, syndrome: int) -> None:
    """MRC-REQ-202, MRC-REQ-240, MRC-REQ-242, MRC-REQ-274, invariant 15: the first message ends with the NAK's status, later ones and
    receives are flushed, once; memory untouched; then RESET and a new life works."""
    pair = Pair(1)
    before = bytes(pair.b.memory)
    pair.b.post_recv(0, 77)
    pair.a.post_write(0, 0, raddr, 600, rkey, 1)
    pair.a.post_write(0, 0, VA, 10, RKEY, 2)
    pair.link.run(5000)
    assert _statuses(pair, 0) == [status, WcStatus.FLUSHED] and _statuses(pair, 1, recv=1) == [WcStatus.FLUSHED]
    assert pair.b.responder.qp[0].nak == syndrome
    touched = [i for i, (x, y) in enumerate(zip(before, pair.b.memory, strict=True)) if x != y]
    assert all(MEMORY - 100 <= i or TARGET <= i < TARGET + 10 for i in touched)
    assert [end.requestor.qp[0].state for end in pair.ends] == [QpState.ERROR] * 2
    assert pair.a.post_write(0, 0, VA, 10, RKEY, 3, pair.link.now) == PostStatus.OK
    pair.link.run(10)
    assert _statuses(pair, 0)[-1] == WcStatus.FLUSHED
    _reconnect(pair, 0xFFFFFE)
    pair.expected[1][:] = pair.b.memory[TARGET:]
    pair.post(0, 0, 3000, imm=4)
    pair.post(1, 0, 3000)
    pair.settle()


def test_lost_nak_comes_again() -> None:
    """MRC-REQ-240: the NAK is lost: probes are answered with it until the requestor knows."""
    pair = Pair(1)
    pair.a.post_write(0, 0, 5, 600, RKEY, 1)
    pair.link.faults = [Faults(dead_evs=frozenset(e.value for q in pair.b.requestor.qp for e in q.ev)) for _ in range(2)]
    pair.link.run(200)
    assert pair.a.requestor.qp[0].state == QpState.RTS
    pair.link.faults = [Faults(), Faults()]
    pair.link.run(3000)
    assert _statuses(pair, 0) == [WcStatus.REMOTE_ACCESS]


def test_receive_queue_empty() -> None:
    """MRC-REQ-255: a WriteIMM without a receive entry ends with REMOTE_OPERATION; its bytes are placed all the same; no RNR."""
    pair = Pair(1)
    pair.a.write_memory(0, b"hello")
    pair.a.post_write_imm(0, 0, VA, 5, RKEY, 9, 1)
    pair.link.run(2000)
    assert _statuses(pair, 0) == [WcStatus.REMOTE_OPERATION] and pair.b.read_memory(TARGET, 5) == b"hello"
    assert pair.b.requestor.qp[0].state == QpState.ERROR


def test_retry_limit() -> None:
    """R-22, invariant 15: nothing comes back: after linear + exponential tries the QP ends, the message once with RETRY_EXCEEDED."""
    pair = Pair(1, qp={"timer_exp": 4, "linear_cnt": 2, "exp_cnt": 2})
    for faults in pair.link.faults:
        faults.down = True
    pair.a.post_write(0, 0, VA, 600, RKEY, 1)
    pair.a.post_write(0, 0, VA, 600, RKEY, 2)
    pair.link.run(20_000)
    assert _statuses(pair, 0) == [WcStatus.RETRY_EXCEEDED, WcStatus.FLUSHED]
    assert pair.a.responder.qp[0].state == QpState.ERROR and pair.a.responder.qp[1].state == QpState.RTS


def test_unreadable_source_and_unwritable_target() -> None:
    """MRC-REQ-243, MRC-REQ-272, MRC-REQ-273: host memory errors end that QP only, with a status at both ends."""
    pair = Pair(1)
    pair.a.post_write(0, MEMORY - 8, VA, 16, RKEY, 1)
    pair.link.run(1000)
    assert _statuses(pair, 0) == [WcStatus.LOCAL_MEMORY]
    assert pair.a.responder.qp[0].state == QpState.ERROR and pair.a.requestor.qp[1].state == QpState.RTS
    pair = Pair(1)
    pair.b.register(5, 0x55, MEMORY + 4096, 4096)
    pair.b.post_recv(0, 6)
    pair.a.post_write(0, 0, MEMORY + 4096, 16, 0x55, 1)
    pair.link.run(1000)
    assert _statuses(pair, 0) == [WcStatus.REMOTE_OPERATION] and _statuses(pair, 1, recv=1) == [WcStatus.FLUSHED]
    assert pair.b.requestor.qp[0].state == QpState.ERROR


def test_host_error_in_flight_then_reset() -> None:
    """MRC-REQ-275, MRC-REQ-245, O-08: the host ends a QP with traffic in flight: every post and receive is reported once; the next life is clean."""
    pair = Pair(3, Faults(jitter=30, drop=0.1))
    for k in range(6):
        pair.post(0, 0, 3000, imm=k)
        pair.post(1, 0, 3000)
    pair.post(1, 1, 5000, imm=1)
    pair.link.run(15)
    for end in pair.ends:
        assert end.command(Command.MODIFY, 0, 0, QpState.ERROR, pair.link.now) == PostStatus.OK
    pair.link.run(20_000)
    pair.collect()
    for side, (sends, receives) in enumerate(((6, 0), (6, 6))):
        mine = [c for c in pair.done[side] if c.qp == 0]
        assert sum(not c.recv for c in mine) == sends and sum(c.recv for c in mine) == receives
    assert pair.finished()
    pair.link.faults = [Faults(), Faults()]
    other = [c for c in pair.done[1] if c.qp == 1], [c for c in pair.done[0] if c.qp == 1]
    assert [c.status for cs in other for c in cs] == [WcStatus.SUCCESS] * 2
    _reconnect(pair, 5)
    for side in range(2):
        pair.expected[side][:] = pair.ends[side].memory[TARGET:]
    for k in range(4):
        pair.post(0, 0, 3000, imm=k)
        pair.post(1, 0, 3000, imm=k)
    pair.settle()


def test_port_down_and_up() -> None:
    """MRC-REQ-230, MRC-REQ-276: a port taken down carries nothing either way; the other plane finishes; it is used again when up."""
    pair = Pair(7)
    assert pair.a.command(Command.PORT, 0, 1, 0) == PostStatus.OK
    sent: list[int] = []
    pair.link.capture = lambda _tick, end, plane, _packet: sent.append(plane) if end == 0 else None
    for side in range(2):
        pair.post(side, 0, 9000, imm=1)
    pair.settle()
    assert set(sent) == {0} and pair.a.drops[Drop.PORT_DOWN] > 0
    assert pair.a.command(Command.PORT, 0, 1, 1) == PostStatus.OK
    pair.post(0, 0, 9000)
    pair.settle()
    assert set(sent) == {0, 1}


def test_no_port_up() -> None:
    """MRC-REQ-230, invariant 17: with every port down nothing is sent, the retry counter runs, the QP ends in time."""
    pair = Pair(7, qp={"timer_exp": 4, "linear_cnt": 2, "exp_cnt": 1})
    for plane in range(2):
        pair.a.command(Command.PORT, 0, plane, 0)
    pair.a.post_write(0, 0, VA, 600, RKEY, 1)
    pair.link.run(20_000)
    assert _statuses(pair, 0) == [WcStatus.RETRY_EXCEEDED] and sum(c.sent for c in pair.link.counts[0]) == 0


def _frames(pair: Pair) -> list[bytes]:
    seen: list[Packet] = []
    pair.link.capture = lambda _tick, end, _plane, packet: seen.append(packet) if end == 0 else None
    pair.post(0, 0, 600, imm=1)
    pair.post(1, 0, 600)
    pair.settle()
    return [build(p, pair.a.wire) for p in seen]


def test_bad_frames_change_nothing() -> None:
    """MRC-REQ-190, MRC-REQ-264, MRC-REQ-265: frames truncated anywhere, with flipped bits, for strangers: counted, memory untouched, the next message works."""
    pair = Pair(8, frames=True)
    frames = _frames(pair)
    rng = random.Random("bad frames")
    fed, before = 0, sum(pair.b.drops.values())
    for frame in frames:
        for cut in range(len(frame)):
            pair.b.receive(rng.randrange(2), frame[:cut], pair.link.now)
            fed += 1
        for _ in range(200):
            bad = bytearray(frame)
            for _ in range(rng.randrange(1, 4)):
                bad[rng.randrange(12, len(bad))] ^= 1 << rng.randrange(8)
            pair.b.receive(rng.randrange(2), bytes(bad), pair.link.now)
        pair.b.receive(0, rng.randbytes(rng.randrange(200)), pair.link.now)
        pair.b.run(pair.link.now)
    assert sum(pair.b.drops.values()) - before >= fed
    assert bytes(pair.b.memory[TARGET:]) == bytes(pair.expected[1])
    pair.post(0, 0, 2000, imm=3)
    pair.settle()


@pytest.mark.parametrize("change, cause", [
    ({"dest_qp": 0x102}, Drop.UNKNOWN_QP), ({"dest_qp": 2}, Drop.UNKNOWN_QP), ({"pkey": 0x7FFF}, Drop.PKEY), ({"src_ip": 5}, Drop.ADDRESS),
    ({"dst_ip": 5}, Drop.ADDRESS), ({"ipv4": True}, Drop.ADDRESS),
])  # fmt: skip
def test_strangers(change: dict[str, int], cause: Drop) -> None:
    """MRC-REQ-264, MRC-REQ-265, MRC-REQ-190: each check of the QP counts its own cause, at the responder (data) and at the
    requestor (feedback), MRC-REQ-266."""
    pair = Pair(8)
    seen: list[tuple[int, Packet]] = []
    pair.link.capture = lambda _tick, end, _plane, packet: seen.append((end, packet))
    pair.post(0, 0, 600)
    pair.settle()
    for end, packet in seen:
        target = pair.ends[1 - end]
        before = target.drops.get(cause, 0)
        target.receive(0, replace(packet, **change), pair.link.now)  # type: ignore[arg-type]
        assert target.drops[cause] == before + 1
    pair.check()


def test_command_statuses() -> None:
    """MRC-REQ-260, MRC-REQ-261, MRC-REQ-262, MRC-REQ-263: unknown op, QP, index; wrong state; zero length; full queues; what a poll gives back."""
    sizes = Sizes(qps=1, msg_slots=2, rq_entries=2)
    end = Endpoint(sizes, GlobalConfig(), 4096)
    assert end.command(99) == PostStatus.BAD_OPCODE and end.command(Command.NOP) == PostStatus.OK
    for op in (Command.SET_QP, Command.POST, Command.POST_RECV, Command.MODIFY):
        assert end.command(op, 1) == PostStatus.BAD_QP
    assert end.command(Command.SET_EV, 0, 4, EvConfig()) == PostStatus.BAD_QP
    assert end.command(Command.SET_REGION, 0, 8, Region()) == PostStatus.BAD_QP
    assert end.command(Command.PORT, 0, 2, 1) == PostStatus.BAD_QP
    assert end.command(Command.SET_QP, 0, 0, QpConfig()) == PostStatus.BAD_STATE
    assert end.post_write(0, 0, 0, 0, 0) == PostStatus.BAD_LENGTH and end.post_write(0, 0, 0, 1, 0) == PostStatus.BAD_STATE
    assert end.post_recv(0, 1) == PostStatus.BAD_STATE
    end.configure_qp(0, QpConfig(), [EvConfig(i, 1, 0) for i in range(4)])
    with pytest.raises(EndpointError, match="BAD_STATE"):
        end.configure_qp(0, QpConfig(), [EvConfig(i, 1, 0) for i in range(4)])
    assert end.command(Command.SET_GLOBAL, config=GlobalConfig()) == PostStatus.BAD_STATE
    assert [end.post_write(0, 0, 0, 1, 0, i) for i in range(3)] == [0, 0, PostStatus.FULL]
    assert [end.post_recv(0, i) for i in range(3)] == [0, 0, PostStatus.FULL]
    assert end.command(Command.MODIFY, 0, 0, QpState.ERROR) == PostStatus.OK
    end.run(1)
    assert end.post_write(0, 0, 0, 1, 0) == PostStatus.FULL  # four completions wait for a poll
    assert [(c.recv, c.wr_id, c.status) for c in sorted(end.poll(), key=lambda c: (c.recv, c.wr_id))] == [
        (0, 0, WcStatus.LOCAL_QP_OPERATION), (0, 1, WcStatus.FLUSHED), (1, 0, WcStatus.FLUSHED), (1, 1, WcStatus.FLUSHED)]  # fmt: skip
    assert end.post_write(0, 0, 0, 1, 0) == PostStatus.OK
    for life in range(3):  # what a RESET forgets, frees its place
        assert end.command(Command.MODIFY, 0, 0, QpState.RESET, 2) == PostStatus.OK and len(end.poll()) == (life == 0)
        end.configure_qp(0, QpConfig(), [EvConfig(i, 1, 0) for i in range(4)], 2)
        assert [end.post_write(0, 0, 0, 1, 0, i, 2) for i in range(2)] + [end.post_recv(0, i, 2) for i in range(2)] == [PostStatus.OK] * 4


def test_wrong_arguments() -> None:
    """Python arguments that cannot be are refused at once."""
    end = Endpoint(SIZES, GlobalConfig(), 4096)
    calls: tuple[Callable[[], object], ...] = (
        lambda: end.write_memory(4090, bytes(8)), lambda: end.read_memory(-1, 2), lambda: end.receive(2, b"", 0),
        lambda: end.configure_qp(0, QpConfig(), []), lambda: end.configure_qp(0, QpConfig(rsp_mpr=100), []), lambda: Faults(drop=1.5),
        lambda: Faults(delay=-1), lambda: Link(end, end, faults=[Faults()]), lambda: Endpoint(SIZES, GlobalConfig(), -1),
        lambda: end.register(0, 1, (1 << 64) - 1, 2),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        end.command(Command.POST, 0, 0, 3)
    with pytest.raises(TypeError):
        end.command(Command.POST_RECV, 0, 0, WorkRequest())
