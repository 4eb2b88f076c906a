"""Record decoders against Amaranth's own reading of the same bits."""

from __future__ import annotations

import random
import time

import pytest
from amaranth.lib import data

from hdl.params import preset
from hdl.trace import TraceLayouts
from model.spec import Kind
from verif.records import Decoder, member_of


def plain(value):
    if isinstance(value, data.Const):
        shape = value.shape()
        if isinstance(shape, data.ArrayLayout):
            return [plain(value[i]) for i in range(shape.length)]
        if isinstance(shape, data.UnionLayout):
            return None
        return {name: plain(value[name]) for name, _ in shape}
    return value


class Bag:
    """A dict as attributes, all the way down."""

    def __new__(cls, value):
        if isinstance(value, dict):
            bag = super().__new__(cls)
            bag.__dict__.update({name: Bag(item) for name, item in value.items()})
            return bag
        return [Bag(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["tiny", "board", "full"])
@pytest.mark.parametrize("owner", [0, 1])
def test_against_amaranth(name, owner):
    rng = random.Random(7)
    params = preset(name)
    layouts = TraceLayouts(params)
    layout, bodies = (layouts.req, layouts.req_bodies) if owner == 0 else (layouts.rsp, layouts.rsp_bodies)
    decoder = Decoder(params, owner)
    for member in bodies:
        kind = Kind[member.upper()]
        bits = rng.getrandbits(layout.size - 8) << 8 | kind
        const = data.Const(layout, bits)
        raw = bits.to_bytes(decoder.size, "little")
        words = decoder.words(raw)
        assert decoder.head(words) == (kind, const.qp, const.seq, const.tick)
        assert decoder.body[kind](words) == plain(const.body[member])
        for state in ("ctx", "path") if owner == 0 else ("ctx",):
            golden = Bag(plain(const[state]))
            assert decoder.same(state, words, golden) and not decoder.differences(state, words, golden)
        golden = Bag(plain(const.ctx))
        golden.state ^= 1
        assert not decoder.same("ctx", words, golden)
        assert [d.path for d in decoder.differences("ctx", words, golden)] == ["state"]
        decoded = decoder.decode(raw)
        if "rx" in dict(bodies[member]):
            rx = const.body[member].rx
            assert decoded["body"]["rx"]["ext"] == plain(rx.ext[member_of(rx.opcode)])
    with pytest.raises(ValueError, match="bytes"):
        decoder.words(b"x")


def test_speed():
    params = preset("board")
    decoder = Decoder(params, 0)
    layout = TraceLayouts(params).req
    bits = random.Random(1).getrandbits(layout.size - 8) << 8 | Kind.SEND
    raw = bits.to_bytes(decoder.size, "little")
    golden = Bag(plain(data.Const(layout, bits).ctx))
    row = Bag(plain(data.Const(layout, bits).path))
    start = time.perf_counter()
    for _ in range(2000):
        words = decoder.words(raw)
        decoder.head(words)
        decoder.body[Kind.SEND](words)
        assert decoder.same("ctx", words, golden) and decoder.same("path", words, row)
    each = (time.perf_counter() - start) / 2000
    print(f"{each * 1e6:.1f} us a record")
    assert each < 60e-6  # far above what it takes: a loaded machine is no failure
