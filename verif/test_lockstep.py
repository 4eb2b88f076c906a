"""The lockstep against streams that golden endpoints made: it accepts what is right, and finds every change of a bit that matters."""

from __future__ import annotations

import random
import time
from struct import pack_into, unpack_from

import pytest

from hdl.params import preset
from model.spec import Kind
from verif.harness.stream import EventType, events
from verif.lockstep import Lockstep, LockstepError
from verif.lockstep_process import RemoteLockstep
from verif.recorded import RecordedPair
from verif.records import Decoder

PARAMS = preset("tiny", trace=True)
MEMORY = 1 << 20
RKEY = 0x70  # names region 0 by its low bits


def traffic(seed: int = 3, loss: float = 0.03, messages: int = 12) -> RecordedPair:
    """Writes and WriteIMMs in both directions over two QPs, with loss."""
    pair = RecordedPair(PARAMS, seed, loss)
    rng = pair.rng
    for qp in (0, 1):
        pair.connect(qp, 0xFFFFF0)
    for nic, end in enumerate(pair.ends):
        pair.write(nic, 0, rng.randbytes(0x8000))
        end.register(0, RKEY, 0x80000, 0x40000)
        for qp in (0, 1):
            for n in range(messages):
                assert end.post_recv(qp, 100 * qp + n, pair.now) == 0
    for n in range(messages):
        for end in pair.ends:
            for qp in (0, 1):
                length, at = rng.randrange(1, 3000), 0x80000 + 0x1000 * (n + 12 * qp)
                if n % 3 == 0:
                    end.post_write_imm(qp, rng.randrange(4096), at, length, RKEY, 0xABC0 + n, n, pair.now)
                else:
                    end.post_write(qp, rng.randrange(4096), at, length, RKEY, n, pair.now)
        pair.run(40)
    pair.run(3000)
    return pair


@pytest.fixture(scope="module")
def pair() -> RecordedPair:
    return traffic()


def clean(stream: bytes) -> Lockstep:
    lockstep = Lockstep(PARAMS, MEMORY)
    lockstep.feed(stream)
    return lockstep


def test_accepts(pair):
    lockstep = clean(pair.stream)
    summary = lockstep.finish(pair.clock)
    assert summary["records"] > 1000 and min(summary["sent"]) > 100 and min(summary["payload_bytes"]) > 20_000
    kinds = summary["kinds"]
    for kind in ("requestor.send", "requestor.retire", "requestor.judge", "requestor.complete", "responder.receive", "responder.emit_sack",
                 "responder.recv_complete"):  # fmt: skip
        assert kinds.get(kind, 0) > 0, kinds
    for nic in (0, 1):
        assert lockstep.sides[nic].wire.memory[:] == bytes(pair.ends[nic].memory)


def test_speed(pair):
    stream = pair.stream
    start = time.perf_counter()
    lockstep = clean(stream)
    spent = time.perf_counter() - start
    frames = sum(lockstep.summary()["sent"])
    print(f"{lockstep.records / spent:.0f} records/s, {frames / spent:.0f} frames/s: {spent / lockstep.records * 1e6:.0f} us a record with its frames")
    assert lockstep.records / spent > 1500


def positions(stream: bytes) -> list[tuple[int, int, int, int]]:
    """Type, offset of the payload, its length, owner, of every event."""
    at, found = 0, []
    while at < len(stream):
        kind, _, part, _, length = unpack_from("<BBBBI", stream, at)
        found.append((kind, at + 32, length, part))
        at += 32 + (length + 7 & ~7)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_finds_flipped_state(pair, seed):
    """A flipped bit of the head or state of any record is found, at that record."""
    rng = random.Random(seed)
    stream = pair.stream
    records = [p for p in positions(stream) if p[0] == EventType.RECORD]
    decoders = [Decoder(PARAMS, owner) for owner in (0, 1)]
    for _ in range(5):
        number = rng.randrange(0, len(records))
        _, at, _, owner = records[number]
        layout = decoders[owner].layout
        names = ["seq", "ctx"] + (["path"] if owner == 0 else [])
        field = layout[rng.choice(names)]
        bit = field.offset + rng.randrange(field.width)
        broken = bytearray(stream)
        broken[at + bit // 8] ^= 1 << bit % 8
        lockstep = Lockstep(PARAMS, MEMORY)
        with pytest.raises(LockstepError) as caught:
            lockstep.feed(bytes(broken))
        assert lockstep.records == number + 1, f"seed {seed}: record {number}, bit {bit}: {caught.value}"


@pytest.mark.parametrize("seed", range(4))
def test_finds_flipped_frame(pair, seed):
    """A flipped bit anywhere in a frame that leaves is found."""
    rng = random.Random(seed)
    stream = pair.stream
    frames = [p for p in positions(stream) if p[0] == EventType.SENT]
    for _ in range(5):
        _, at, length, _ = rng.choice(frames)
        bit = rng.randrange(8 * length)
        broken = bytearray(stream)
        broken[at + bit // 8] ^= 1 << bit % 8
        with pytest.raises(LockstepError, match="plane"):
            clean(bytes(broken))


def without(stream: bytes, drop) -> bytes:
    return b"".join(stream[at - 32 : at + (length + 7 & ~7)] for i, (kind, at, length, part) in enumerate(positions(stream)) if not drop(i, kind, at))


@pytest.mark.parametrize(("kind", "text"), [(EventType.SENT, "never sent"), (EventType.DELIVERED, "beside the frame|no frame"),
                                            (EventType.RECORD, "no record asked for it"), (EventType.COMPLETION, "completion|never read")])  # fmt: skip
def test_finds_missing_event(pair, kind, text):
    stream = pair.stream
    number = [i for i, p in enumerate(positions(stream)) if p[0] == kind][-3]
    lockstep = Lockstep(PARAMS, MEMORY)
    with pytest.raises(LockstepError, match=text):
        lockstep.feed(without(stream, lambda i, k, at: i == number))
        lockstep.finish(pair.clock)


def test_finds_missing_step(pair):
    """A RETIRE that does not come is missed after the bound. Numbers are closed up, so that only liveness can notice."""
    stream = bytearray(pair.stream)
    decoder = Decoder(PARAMS, 0)
    places = positions(bytes(stream))
    heads = {
        i: decoder.head(decoder.words(bytes(stream[at : at + n]))) for i, (kind, at, n, part) in enumerate(places) if kind == EventType.RECORD and part == 0
    }
    nics = {i: stream[places[i][1] - 31] for i in heads}
    last = max(i for i, head in heads.items() if head[0] == Kind.RETIRE)
    keep = [i for i in heads if i < last]
    after = [i for i, (kind, at, n, part) in enumerate(places) if i >= last]
    cut = without(bytes(stream), lambda i, k, at: i in after)
    lockstep = Lockstep(PARAMS, MEMORY, bound=2000)
    lockstep.feed(cut)
    assert keep and nics
    clock = lockstep.clock
    link = bytearray(32)
    with pytest.raises(LockstepError, match="RETIRE.*has been due"):
        for later in range(clock, clock + 10_000, 100):
            pack_into("<BBBBIQQQ", link, 0, EventType.LINK, 0, 0, 0, 0, later, 0, 1)
            lockstep.feed(bytes(link))


def test_report(pair):
    stream = bytearray(pair.stream)
    records = [p for p in positions(bytes(stream)) if p[0] == EventType.RECORD and p[3] == 0]
    _, at, _, _ = records[len(records) // 2]
    ctx = Decoder(PARAMS, 0).layout["ctx"]
    bit = ctx.offset + ctx.shape["inflight"].offset
    stream[at + bit // 8] ^= 1 << bit % 8
    with pytest.raises(LockstepError) as caught:
        clean(bytes(stream))
    text = str(caught.value)
    for word in ("NIC ", "clock", "inflight", "hardware", "golden", "requestor record", "newest records"):
        assert word in text, text
    assert list(events(bytes(stream)))


def test_remote(pair):
    """In a process of its own: the same summary, the same report."""
    remote = RemoteLockstep(PARAMS, MEMORY)
    stream = pair.stream
    cut = positions(stream)[700][1] - 32
    remote.feed(stream[:cut])
    remote.feed(stream[cut:])
    lockstep = clean(stream)
    assert remote.finish(pair.clock) == lockstep.finish(pair.clock)
    remote.close()
    remote = RemoteLockstep(PARAMS, MEMORY)
    broken = bytearray(stream[:cut])
    _, at, _, _ = [p for p in positions(stream[:cut]) if p[0] == EventType.RECORD][-1]
    broken[at + 2] ^= 1
    with pytest.raises(LockstepError, match="follow each other"):
        remote.feed(bytes(broken))
        remote.finish(pair.clock)
