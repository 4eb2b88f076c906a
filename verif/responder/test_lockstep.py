"""Random arrivals in lockstep with the golden model, with every stream slow at random. The seed of a case is its id."""

from __future__ import annotations

import pytest

from hdl.params import preset
from model.spec import Drop, Kind, NackReason
from verif.responder.bench import Bench, Stall
from verif.responder.traffic import Traffic

SLOW = Stall(tx=0.5, verdict=0.5, completion=0.5, status=0.5, peer=0.5, rx=0.3)
SHAPES = {
    "tiny": {}, "one QP, one plane, one EV": {"qps": 1, "planes": 1, "evs": 1}, "window 256, 8 EVs": {"window": 256, "evs": 8},
    "four planes, short queue": {"qps": 4, "planes": 4, "evs": 1, "sack_queue": 4, "max_wimm": 2, "rq_entries": 2},
}  # fmt: skip
CASES = [
    (8, "tiny", Stall(), 0.0), (2, "tiny", SLOW, 0.03), (3, "tiny", Stall(tx=0.9), 0.01), (4, "tiny", Stall(completion=0.97), 0.03),
    (5, "one QP, one plane, one EV", SLOW, 0.02), (6, "window 256, 8 EVs", Stall(), 0.02), (7, "four planes, short queue", Stall(), 0.01),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "shape", "stall", "kill"), CASES)
def test_random_arrivals(seed: int, shape: str, stall: Stall, kill: float) -> None:
    """MRC-REQ-190 to 255: every record's outputs and state, every stream, every counter; several hundred arrivals per case."""
    print(f"seed {seed}, {shape}")
    b = Bench(params=preset("tiny", trace=True, tick_div=4, **SHAPES[shape]), seed=seed, stall=stall)
    traffic = Traffic(b, 260, kill=kill)
    b.run(clocks=100_000, more=traffic, quiet=250)
    kinds = set(b.kinds())
    assert {Kind.RECEIVE, Kind.ADVANCE, Kind.RECV_COMPLETE, Kind.EMIT_ACK, Kind.EMIT_NACK, Kind.EMIT_SACK} <= kinds
    assert Drop.DUPLICATE in b.drops
    assert any(body["answer"]["reason"] in (NackReason.TRIMMED, NackReason.TRIMMED_LASTHOP) for body in b.bodies(Kind.EMIT_NACK))
    if kill:
        assert traffic.counts.get("revive"), traffic.counts
