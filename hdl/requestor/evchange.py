"""Changes of an EV's health and membership on one path row: skip, bad with demotion, deny, allow, recovery with promotion.

Rules: MRC facts, section 5. Planes stay equally loaded, since a membership is only ever swapped inside a plane.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import Layouts
from hdl.params import Params
from hdl.requestor.bits import any_first, ev_of, plane_of, select


class EvOp(enum.Enum, shape=3):
    """What happens to the EV. An operation that its health does not allow changes nothing."""

    SKIP = 0  # GOOD -> SKIP; a BACKUP stays GOOD
    BAD = 1  # GOOD, SKIP -> ASSUMED_BAD with demotion (or SKIP when ev_min_active would be undercut)
    DENY = 2  # any -> DENIED with demotion
    ALLOW = 3  # DENIED -> GOOD with promotion of a BACKUP
    RECOVER_GOOD = 4  # ASSUMED_BAD -> GOOD with promotion of a BACKUP
    RECOVER_SKIP = 5  # ASSUMED_BAD -> SKIP (BACKUP: GOOD with promotion)


class EvChange(wiring.Component):
    """Applies ``op`` to EV ``evi`` of ``path``.

    ``start`` for one clock; the inputs must stay until ``done`` (one clock, 4 clocks later). ``next_path`` is the row after the change;
    ``became_bad``: the EV is ASSUMED_BAD now and was not before. Both hold until the next start.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        path = Layouts(params).path
        super().__init__({
            "start": In(1), "path": In(path), "evi": In(params.evi_bits), "op": In(EvOp), "ev_min_active": In(8),
            "done": Out(1), "next_path": Out(path), "became_bad": Out(1),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.params
        evs, planes = p.evs, p.planes
        rows = [self.path.planes[n] for n in range(planes)]
        plane = plane_of(p, self.evi)

        row = Signal(rows[0].shape())
        counts = [Signal(range(evs + 1)) for _ in range(planes)]  # ACTIVE EVs in GOOD or SKIP
        total = Signal(range(p.total_evs + 1))
        onehot = Signal(evs)
        swap = Signal(evs)  # one-hot: the EV that takes over the membership
        swapping = Signal()
        good, skip, bad = Signal(), Signal(), Signal()  # new health; none: DENIED
        was_bad = Signal()

        active = (row.active & onehot).any()
        is_good, is_skip, is_bad = (row.good & onehot).any(), (row.skip & onehot).any(), (row.bad & onehot).any()
        denied = ~(is_good | is_skip | is_bad)

        def lowest(bits: Value) -> tuple[Value, Value]:
            found, index = any_first(m, bits)
            return found, (Const(1, evs) << index)[:evs]

        spare, spare_bit = lowest(~row.active & row.good & ~onehot)
        broken, broken_bit = lowest(row.active & row.bad)
        barred, barred_bit = lowest(row.active & ~(row.good | row.skip | row.bad))

        m.d.sync += self.done.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.start):
                    m.d.sync += [
                        Value.cast(row).eq(select([Value.cast(r) for r in rows], plane)),
                        onehot.eq(Const(1, evs) << ev_of(p, self.evi)),
                        *(counts[n].eq(sum(rows[n].active & (rows[n].good | rows[n].skip))) for n in range(planes)),
                    ]  # fmt: skip
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.sync += total.eq(sum(counts))
                m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.sync += [good.eq(is_good), skip.eq(is_skip), bad.eq(is_bad), was_bad.eq(is_bad), swapping.eq(0)]
                promote = [good.eq(1), skip.eq(0), bad.eq(0), swapping.eq(~active & (broken | barred)), swap.eq(Mux(broken, broken_bit, barred_bit))]
                with m.Switch(self.op):
                    with m.Case(EvOp.SKIP):
                        with m.If(is_good & active):
                            m.d.sync += [good.eq(0), skip.eq(1)]
                    with m.Case(EvOp.BAD):
                        with m.If(is_good | is_skip):
                            m.d.sync += [good.eq(0), skip.eq(0), bad.eq(1), swap.eq(spare_bit)]
                            with m.If(active & spare):
                                m.d.sync += swapping.eq(1)
                            with m.Elif(active & (total <= self.ev_min_active)):
                                m.d.sync += [skip.eq(1), bad.eq(0)]
                    with m.Case(EvOp.DENY):
                        with m.If(~denied):
                            m.d.sync += [good.eq(0), skip.eq(0), bad.eq(0), swap.eq(spare_bit), swapping.eq(active & spare)]
                    with m.Case(EvOp.ALLOW):
                        with m.If(denied):
                            m.d.sync += promote
                    with m.Case(EvOp.RECOVER_GOOD, EvOp.RECOVER_SKIP):
                        with m.If(is_bad):
                            with m.If(active & (self.op == EvOp.RECOVER_SKIP)):
                                m.d.sync += [skip.eq(1), bad.eq(0)]
                            with m.Else():
                                m.d.sync += promote
                m.next = "PUT"
            with m.State("PUT"):
                m.d.sync += [self.done.eq(1), self.became_bad.eq(bad & ~was_bad), Value.cast(self.next_path).eq(self.path)]
                for n in range(planes):
                    out = self.next_path.planes[n]
                    with m.If(plane == n):
                        m.d.sync += [
                            out.active.eq(row.active ^ Mux(swapping, onehot | swap, 0)),
                            out.good.eq(row.good & ~onehot | Mux(good, onehot, 0)),
                            out.skip.eq(row.skip & ~onehot | Mux(skip, onehot, 0)),
                            out.bad.eq(row.bad & ~onehot | Mux(bad, onehot, 0)),
                        ]  # fmt: skip
                m.next = "IDLE"
        return m


def health_bits(params: Params, path: object, evi: Value) -> Value:
    """Cat(good, skip, bad, active) of EV ``evi`` on the path row ``path`` (a view); no health bit set = DENIED."""
    rows = [path.planes[n] for n in range(params.planes)]  # type: ignore[attr-defined]
    every = [Cat(row.good[e], row.skip[e], row.bad[e], row.active[e]) for row in rows for e in range(params.evs)]
    return select(every, evi)


__all__ = ["EvChange", "EvOp", "health_bits"]
