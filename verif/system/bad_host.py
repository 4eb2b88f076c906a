"""A host that asks for what cannot be: a status, an error completion or a bus error each, and the next good request works.

Covers MRC-REQ-052..057, 060..065, 243, 245..248, 260..263; failure modes R-02, O-05, O-07, O-08, S-03.
"""

from __future__ import annotations

from typing import Any

from hdl.host import regmap
from hdl.host.regmap import BY_NAME
from model.config import EvConfig, QpConfig, Region, WorkRequest
from model.spec import Command, PostStatus, QpState, WcStatus
from verif.system.env import RKEY, SOURCE_BASE, TARGET_BASE, A, B, CheckError, System
from verif.system.frames import good, restart
from verif.system.scenarios import scenario

SLVERR = 2
_WR = WorkRequest(0, SOURCE_BASE, TARGET_BASE, 64, RKEY + 256 * B, 0, 0xBAD)
_AT = {name: register.address for name, register in BY_NAME.items()}


def refuse(s: System, why: PostStatus, op: int, qp: int = 0, index: int = 0, data: Any = 0, nic: int = A) -> None:
    """Queues a command that must be answered ``why``."""
    s.queue(nic, op, qp, index, data, expect=why)


@scenario()
async def numbers_refused(s: System) -> None:
    """QPs, EVs, regions, ports and operations that do not exist, requests of zero length: refused, and nothing has changed."""
    await s.connect()
    await good(s)
    for qp in (s.p.qps, 0x100, 0xFFFF):
        for op, data in ((Command.POST, _WR), (Command.POST_RECV, 1), (Command.MODIFY, int(QpState.ERROR)), (Command.SET_QP, QpConfig()),
                         (Command.SET_EV, EvConfig()), (Command.EV_STATE, 1)):  # fmt: skip
            refuse(s, PostStatus.BAD_QP, op, qp, data=data)
    evs = s.p.planes * s.p.evs
    for index in (evs, 0xFFFF):
        refuse(s, PostStatus.BAD_QP, Command.SET_EV, 0, index, EvConfig())
        refuse(s, PostStatus.BAD_QP, Command.EV_STATE, 0, index, 1)
    for index in (s.p.regions, 0xFFFF):
        refuse(s, PostStatus.BAD_QP, Command.SET_REGION, 0, index, Region())
    for index in (s.p.planes, 0xFFFF):
        refuse(s, PostStatus.BAD_QP, Command.PORT, 0, index, 0)
    for op in (max(Command) + 1, 0x55, 0x80 | Command.POST, 0xFF):
        refuse(s, PostStatus.BAD_OPCODE, op)
        refuse(s, PostStatus.BAD_OPCODE, op, 0xFFFF)
    refuse(s, PostStatus.OK, Command.NOP, 0xFFFF, 0xFFFF)
    for state_qp in (0, 1):  # in RTS, and in RESET: the length is looked at first
        refuse(s, PostStatus.BAD_LENGTH, Command.POST, state_qp, data=WorkRequest(0, SOURCE_BASE, TARGET_BASE, 0, RKEY + 256 * B, 0, 1))
        refuse(s, PostStatus.BAD_LENGTH, Command.POST, state_qp, data=WorkRequest(1, SOURCE_BASE, TARGET_BASE, 0, RKEY + 256 * B, 0, 1))
    await s.settle()
    s.write(A, 700, imm=9)
    await good(s)


@scenario()
async def states_refused(s: System) -> None:
    """Every command in every state of a QP that does not allow it: BAD_STATE. ERROR takes posts and flushes them."""
    await s.connect(0)  # so SET_GLOBAL is refused too
    ev, config = EvConfig(value=5, active=1), QpConfig(peer_ip=s.ip(B), peer_mac=s.mac(B))
    posts = {QpState.RESET: (Command.POST, Command.POST_RECV), QpState.INIT: (Command.POST,), QpState.RTR: (Command.POST,), QpState.RTS: ()}
    steps = {QpState.RESET: QpState.INIT, QpState.INIT: QpState.RTR, QpState.RTR: QpState.RTS}
    for state, refused in posts.items():
        for op in refused:
            refuse(s, PostStatus.BAD_STATE, op, 1, data=_WR if op == Command.POST else 77)
        if state == QpState.INIT:
            s.queue(A, Command.SET_QP, 1, data=config)
        else:
            refuse(s, PostStatus.BAD_STATE, Command.SET_QP, 1, data=config)
            refuse(s, PostStatus.BAD_STATE, Command.SET_EV, 1, data=ev)
        refuse(s, PostStatus.BAD_STATE, Command.SET_GLOBAL, data=s.glob(A, udp_port=5000))
        for target in range(8):
            if target not in (QpState.RESET, QpState.ERROR, steps.get(state)):
                refuse(s, PostStatus.BAD_STATE, Command.MODIFY, 1, data=target)
        if state in steps:
            s.queue(A, Command.MODIFY, 1, data=int(steps[state]))
    s.queue(A, Command.MODIFY, 1, data=int(QpState.ERROR))
    s.queue(A, Command.MODIFY, 1, data=int(QpState.ERROR))  # the same again is allowed
    await s.settle()
    for target in (QpState.INIT, QpState.RTR, QpState.RTS, 5, 6, 7):
        refuse(s, PostStatus.BAD_STATE, Command.MODIFY, 1, data=int(target))
    refuse(s, PostStatus.BAD_STATE, Command.SET_QP, 1, data=config)
    s.peer[A, 1] = (B, 1)
    s.write(A, 64, 1, status=WcStatus.FLUSHED)
    s.post_recv(A, 1)
    await s.done()
    await s.until(lambda: not s.receives[A, 1], what="the flushed receive entry")
    s.queue(A, Command.MODIFY, 1, data=int(QpState.RESET))
    s.queue(A, Command.MODIFY, 1, data=int(QpState.RESET))
    await s.settle()
    await s.connect(1)
    await good(s, 0)
    await good(s, 1)
    s.wanted_kinds |= {"requestor.qp_error", "responder.qp_error"}


@scenario()
async def values_refused(s: System) -> None:
    """SET_QP with what this instance cannot do: BAD_VALUE whatever the state, and the configuration before it stays."""
    await s.connect(0)
    good_config = QpConfig(peer_ip=s.ip(B), peer_mac=s.mac(B))
    wrong: list[dict[str, int]] = [
        {"mtu": 5}, {"mtu": 6}, {"mtu": 7}, {"rsp_mpr": 0}, {"rsp_mpr": 64}, {"rsp_mpr": 129}, {"rsp_mpr": s.p.window + 128}, {"rsp_mpr": 0x8000},
        {"timer_exp": 25}, {"timer_exp": 31}, {"exp_cnt": 26}, {"exp_cnt": 31}, {"lfsr_seed": 0},
    ]  # fmt: skip

    def all_wrong(qp: int) -> None:
        for change in wrong:
            config = good_config.copy()
            for name, value in change.items():
                setattr(config, name, value)
            refuse(s, PostStatus.BAD_VALUE, Command.SET_QP, qp, data=config)

    all_wrong(0)  # in RTS
    await good(s, 0)
    # The peer of QP 1 is set up between good values and wrong ones: those leave no trace.
    await s.connect(1)
    s.queue(A, Command.MODIFY, 1, data=int(QpState.RESET))
    s.queue(B, Command.MODIFY, 1, data=int(QpState.RESET))
    s.queue(A, Command.MODIFY, 1, data=int(QpState.INIT))
    all_wrong(1)
    s.queue(A, Command.MODIFY, 1, data=int(QpState.RESET))
    await s.settle()
    s.receives.clear()
    for config in ({"timer_exp": 24, "exp_cnt": 25, "mtu": 4}, {"timer_exp": 0, "exp_cnt": 25, "mtu": 0}):  # the outermost good ones
        await restart(s, 1, **config)
        await good(s, 1, 5000)
    for nic in (A, B):  # 1 us is less than a round trip: probes of EVs that were given up would go on for ever
        s.queue(nic, Command.MODIFY, 1, data=int(QpState.RESET))
    await s.settle()


@scenario()
async def queues_full(s: System) -> None:
    """Message slots and receive entries used up: FULL, the other QP has its own; all that was accepted completes, then there is room again."""
    await s.connect(0, receives=0, timer_exp=4, exp_cnt=25)
    await s.connect(1, receives=0)
    s.native.set("drop", 1_000_000, A)
    for n in range(s.p.msg_slots):
        s.write(A, 100 + n, 0, imm=n if n % 4 == 0 else None)
    for _ in range(3):
        s.write(A, 100, 0, expect=PostStatus.FULL)
    for _ in range(s.p.rq_entries):
        s.post_recv(B, 0)
    for _ in range(2):
        s.post_recv(B, 0, expect=PostStatus.FULL)
    refuse(s, PostStatus.BAD_LENGTH, Command.POST, data=WorkRequest(0, SOURCE_BASE, TARGET_BASE, 0, 0, 0, 1))  # the length is looked at first
    s.post_recv(B, 1)
    s.write(B, 300, 1)
    await s.settle()
    s.native.set("drop", 0, A)
    await s.done()
    assert len(s.completions) == s.p.msg_slots + s.p.msg_slots // 4 + 1, len(s.completions)
    for _ in range(s.p.msg_slots // 4):
        s.post_recv(B, 0)
    s.post_recv(B, 0, expect=PostStatus.FULL)
    await s.settle()
    for _ in range(s.p.msg_slots):
        s.write(A, 50, 0)
    await s.done()


@scenario()
async def completions_never_read(s: System) -> None:
    """Nobody reads A's completions: posts are taken until each of the queue's places is promised, then FULL on every QP, sending or receiving. Read
    at last, every completion is there, once, in order; then posts are taken again (O-07, R-02)."""
    await s.connect(0, receives=0)
    await s.connect(1, receives=0)
    s.native.set("cq_poll", 0, A)
    depth, waiting = s.p.cq_depth, 0
    target = s.target(B, 64)
    data = s.rng.randbytes(64)
    source = s.source(A, data)
    while waiting < depth:
        for n in range(min(s.p.msg_slots // 2, depth - waiting)):
            s.write(A, qp=n % 2, data=data, source=source, target=target)
            waiting += 1
        await s.settle()
        for _ in range(200):
            if await s.read(A, _AT["CQ_COUNT"]) == waiting:
                break
            await s.step(200)
        else:
            raise CheckError(f"{waiting} messages were posted, {await s.read(A, _AT['CQ_COUNT'])} completions wait")
    for qp in (0, 1):
        s.write(A, qp=qp, data=data, source=source, target=target, expect=PostStatus.FULL)
        s.post_recv(A, qp, expect=PostStatus.FULL)
    s.write(B, 500)  # B's host does read
    await s.settle()
    await s.until(lambda: len(s.completions) == 1, what="B's completion")
    s.native.set("cq_poll", 1, A)
    await s.done()
    assert len(s.completions) == depth + 1, len(s.completions)
    assert await s.read(A, _AT["CQ_COUNT"]) == 0
    s.post_recv(A, 0)
    await good(s)
    await good(s, 1)


@scenario()
async def source_unreadable(s: System) -> None:
    """Reading a source fails in the middle of a message: LOCAL_MEMORY for that message, those behind it are flushed, the other QP goes on; B's side
    lost nothing but the rest of a message. After RESET it works."""
    await s.connect(0)
    await s.connect(1)
    await good(s, 0)
    data = s.rng.randbytes(6000)
    source = s.source(A, data, offset=0)
    s.native.error_range(A, source + 4096, source + 4100, read=True, write=False)
    for n in range(3):
        s.write(A, 4000, 1, imm=n)
        s.write(B, 4000, 1)
    s.write(A, qp=0, data=data, source=source, status=WcStatus.LOCAL_MEMORY)
    for _ in range(3):
        s.write(A, 200, 0, status=WcStatus.FLUSHED)
        s.write(A, 3000, 1)
    await s.done()
    assert s.native.counter("read_errors", A) >= 1 and not s.native.counter("write_errors", B)
    assert [c.status for c in s.completions if (c.nic, c.qp, c.recv) == (A, 0, 0)] == [0, WcStatus.LOCAL_MEMORY, 1, 1, 1]
    s.native.clear_error_ranges(A)
    await restart(s)
    s.write(A, data=data, source=source)
    await good(s)
    await good(s, 1)
    s.wanted_kinds |= {"requestor.qp_error", "responder.qp_error"}


@scenario()
async def target_unwritable(s: System) -> None:
    """Host memory refuses a payload: NAK 0x63, B's QP in ERROR; neither side ever reads a success for that message, nor for one behind it. The
    other QP goes on. After RESET it works (MRC-REQ-243)."""
    await s.connect(0)
    await s.connect(1)
    await good(s, 0)
    await s.quiet(1200)
    s.check_completions = False  # which receive entry tells what depends on when the bus answers
    seen = len(s.completions)
    target = s.target(B, 8000, offset=0)
    s.native.error_range(B, target + 5000, target + 5001, read=False, write=True)
    status = WcStatus.REMOTE_OPERATION
    lost = [s.write(A, 8000, 0, imm=0xBAD0, target=target, status=status)]
    lost += [s.write(A, 500, 0, imm=0xBAD1 + n, status=status) for n in range(2)]
    others = [s.write(nic, 3000, 1) for nic in (A, B) for _ in range(3)]
    wanted = {m.wr_id for m in lost + others}
    await s.until(lambda: wanted <= {c.wr_id for c in s.completions}, what="the completions")
    await s.quiet(1200)
    ended = {c.wr_id: c.status for c in s.completions[seen:] if not c.recv}
    assert [ended[m.wr_id] for m in lost] == [status, WcStatus.FLUSHED, WcStatus.FLUSHED], ended
    assert all(ended[m.wr_id] == WcStatus.SUCCESS for m in others), ended
    told = [c for c in s.completions[seen:] if c.recv and c.nic == B and c.qp == 0]
    assert len(told) == 8 and not any(c.status == WcStatus.SUCCESS for c in told), told
    assert s.native.counter("write_errors", B) >= 1
    s.native.clear_error_ranges(B)
    for waiting in (s.sends, s.receives, s.imms):
        waiting.clear()  # type: ignore[attr-defined]
    s.check_completions = True
    await restart(s)
    await good(s)
    for nic in (A, B):
        s.write(nic, 2000, 0, imm=7)
    await s.done()
    s.wanted_kinds |= {"requestor.qp_error", "responder.qp_error", "responder.emit_ack"}


@scenario()
async def registers_abused(s: System) -> None:
    """Unmapped addresses and writes to read-only registers answer SLVERR and change nothing; a command while one is busy is ignored and counted; a
    pop of an empty completion queue does nothing (O-05, S-03)."""
    await s.connect()
    mapped = {r.address for r in regmap.REGISTERS}
    mapped |= {regmap.plane_counter(plane, name) for plane in range(s.p.planes) for name in regmap.PLANE_COUNTERS}
    for address in (0x020, 0x03C, 0x08C, 0x0BC, 0x0DC, 0x1FC, 0x200 + 4 * len(regmap.COUNTERS), 0x3FC, 0x414, 0x480, 0xFFC, 0x1000, 0x1088, 0xFFFC):
        assert address not in mapped
        assert (await s.access(A, address)) == (0, SLVERR), hex(address)
        assert (await s.access(A, address, 0xFFFF_FFFF))[1] == SLVERR, hex(address)
    for name in ("ID", "VERSION", "PARAMS0", "PARAMS1", "PORT_STATUS", "MAILBOX_ERRORS", "CMD_STATUS", "CQ_COUNT", "CQ_INFO", "CNT_DROP_ICRC"):
        before = await s.read(A, _AT[name])
        assert (await s.access(A, _AT[name], ~before & 0xFFFF_FFFF))[1] == SLVERR, name
        assert await s.read(A, _AT[name]) == before, name
    assert await s.read(A, _AT["ID"]) == regmap.ID_VALUE and await s.read(A, _AT["CMD"]) == 0 and await s.read(A, _AT["CQ_POP"]) == 0
    for _ in range(3):
        assert await s.access(A, _AT["CQ_POP"], 1) == (1, 0)
    assert await s.read_all(A, [_AT[name] for name in ("CQ_COUNT", "CQ_INFO")]) == [0, 0]
    await good(s)

    # A post, and right behind it an operation that does not exist: had that one been taken, the status would say BAD_OPCODE.
    for busy in range(1, 4):
        plain = s.native.queue
        second = (0, _AT["CMD"], 0xEE, 15, 0, 0)
        s.native.queue = lambda nic, operations, plain=plain, second=second: plain(
            nic, [one for o in operations for one in ([o, second] if o[:2] == second[:2] else [o])])  # fmt: skip
        s.write(A, 300)  # its status is checked: OK
        s.native.queue = plain
        await s.settle()
        assert await s.read(A, _AT["MAILBOX_ERRORS"]) == busy
    await s.done()
    assert await s.read(B, _AT["MAILBOX_ERRORS"]) == 0
    await good(s)
