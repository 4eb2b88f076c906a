"""Spray arbiter: the selection rule of docs/architecture.md on one path row. A pure function of its inputs, in a few clocks.

Rule (MRC facts, section 5): planes rotate, inside a plane the EVs rotate in a pseudo-random order (position i is EV i XOR r); one SKIP EV at
most is restored per packet; the fallback to SKIP or ASSUMED_BAD EVs comes only when no ACTIVE GOOD EV is left on a plane that is up.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.layouts import Layouts
from hdl.params import Params
from hdl.requestor.bits import any_first, bind, evi_of, first_cyclic, plane_of, select, thermometer, xor_order
from model import spec


class Spray(wiring.Component):
    """Chooses plane and EV of one packet.

    ``start`` for one clock begins; the inputs must stay until ``done`` (one clock, 5 or 7 clocks later). Then ``found`` tells whether an EV was
    selected, ``plane``, ``evi`` which, ``fallback`` that the fallback was taken, and ``next_path`` is the row after the packet (pointers,
    LFSR, restore). They hold until the next start. With ``found`` = 0, ``next_path`` means nothing.

    Inputs: ``up`` and ``room`` per plane; ``need_credit`` for new data; ``masked`` and ``mask_evi`` for a retransmission (the lost copy's EV,
    used unless it is the only ACTIVE EV, not DENIED, on a plane that is up); ``in_order`` turns the pseudo-random order off.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        path = Layouts(params).path
        super().__init__({
            "start": In(1), "path": In(path), "up": In(params.planes), "room": In(params.planes),
            "need_credit": In(1), "masked": In(1), "mask_evi": In(params.evi_bits), "in_order": In(1),
            "done": Out(1), "found": Out(1), "plane": Out(params.plane_bits), "evi": Out(params.evi_bits), "fallback": Out(1),
            "next_path": Out(path),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p = self.params
        planes, evs = p.planes, p.evs
        rows = [self.path.planes[n] for n in range(planes)]
        ready = self.up & self.room

        # The masked EV, unless nothing else is usable.
        onehots = [Mux(self.masked & (plane_of(p, self.mask_evi) == n), Const(1, evs) << self._in_plane(self.mask_evi), 0)[:evs]
                   for n in range(planes)]  # fmt: skip
        others = Cat(self.up[n] & ((rows[n].good | rows[n].skip | rows[n].bad) & rows[n].active & ~onehots[n]).any() for n in range(planes))
        mask_use = Signal()

        # First look: which planes have what, of the ACTIVE EVs without the masked one.
        active = [bind(m, rows[n].active & ~Mux(mask_use, onehots[n], 0)[:evs]) for n in range(planes)]
        credit = [~rows[n].full | ~self.need_credit.replicate(evs) for n in range(planes)]
        eligible = bind(m, Cat(ready[n] & (active[n] & rows[n].good & credit[n]).any() for n in range(planes)))
        good_up = Cat(self.up[n] & (active[n] & rows[n].good).any() for n in range(planes)).any()
        skip_up = Cat(self.up[n] & (active[n] & rows[n].skip).any() for n in range(planes)).any()
        has_skip = Cat((active[n] & rows[n].skip).any() for n in range(planes))
        fall_skip = Cat(ready[n] & (active[n] & rows[n].skip & credit[n]).any() for n in range(planes))
        fall_bad = Cat(ready[n] & (active[n] & rows[n].bad & credit[n]).any() for n in range(planes))
        fall = Mux(skip_up, fall_skip, fall_bad)
        has_good, good_plane = first_cyclic(m, eligible, self.path.plane_ptr)
        has_fall, fall_plane = first_cyclic(m, fall, self.path.plane_ptr)
        # A plane passed over: up, free, nothing eligible there, but a SKIP EV.
        passed_any, passed = first_cyclic(m, ready & ~eligible & has_skip, self.path.plane_ptr)

        chosen = Signal(p.plane_bits)
        restore_plane = Signal(p.plane_bits)
        restore_passed = Signal()
        use_skip = Signal()  # the fallback takes SKIP EVs, else ASSUMED_BAD ones

        # Scan of one plane, first the chosen one, then the passed one for its restore.
        looked_at = Signal(p.plane_bits)
        scan_row = Signal(rows[0].shape())
        scan_active = Signal(evs)
        scan_cand = Signal(evs)
        scan_skip = Signal(evs)
        taps = [self.path.lfsr[k] for k in spec.LFSR_TAPS]
        feedback = taps[0]
        for tap in taps[1:]:
            feedback = feedback ^ tap
        lfsr = bind(m, Cat(self.path.lfsr[1:], feedback))
        r2 = bind(m, Mux(self.in_order, scan_row.r, lfsr[:p.ev_bits]) & (evs - 1))
        beyond = ~thermometer(m, scan_row.ptr, evs)
        first = bind(m, xor_order(m, scan_cand, scan_row.r) & beyond)
        second = xor_order(m, scan_cand, r2)
        hit, pos1 = any_first(m, first)
        _, pos2 = any_first(m, second)
        position = Mux(hit, pos1, pos2)
        before = bind(m, Mux(hit, first, second))
        below = bind(m, ((before - 1) & ~before)[:evs])
        skip1 = xor_order(m, scan_skip, scan_row.r) & beyond & Mux(hit, below, ~Const(0, evs))
        skip2 = xor_order(m, scan_skip, r2) & Mux(hit, 0, below)
        on_way1, way1 = any_first(m, skip1)
        on_way2, way2 = any_first(m, skip2)

        win_pos = Signal(p.ev_bits)
        win_ev = Signal(p.ev_bits)
        redrawn = Signal()
        win_r = Signal(p.ev_bits)
        restore = Signal()
        restore_ev = Signal(p.ev_bits)

        m.d.sync += self.done.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.start):
                    m.d.sync += mask_use.eq(self.masked & others.any())
                    m.next = "LOOK"
            with m.State("LOOK"):
                distance = (good_plane - self.path.plane_ptr) & (planes - 1)
                passed_distance = (passed - self.path.plane_ptr) & (planes - 1)
                fallback = ~good_up
                m.d.sync += [
                    self.found.eq(Mux(fallback, has_fall, has_good)),
                    self.fallback.eq(fallback), use_skip.eq(skip_up),
                    chosen.eq(Mux(fallback, fall_plane, good_plane)), looked_at.eq(Mux(fallback, fall_plane, good_plane)),
                    restore_plane.eq(passed),
                    restore_passed.eq(~fallback & passed_any & (passed_distance < distance)),
                ]  # fmt: skip
                with m.If(Mux(fallback, has_fall, has_good)):
                    m.next = "TAKE"
                with m.Else():
                    m.d.sync += self.done.eq(1)
                    m.next = "IDLE"
            with m.State("TAKE"):
                m.d.sync += [
                    Value.cast(scan_row).eq(select([Value.cast(row) for row in rows], looked_at)),
                    scan_active.eq(select(active, looked_at)),
                ]  # fmt: skip
                m.next = "SETS"
            with m.State("SETS"):
                free = ~scan_row.full | ~self.need_credit.replicate(evs)
                m.d.sync += scan_skip.eq(scan_active & scan_row.skip)
                with m.If(self.fallback):
                    m.d.sync += scan_cand.eq(scan_active & free & Mux(use_skip, scan_row.skip, scan_row.bad))
                with m.Else():
                    m.d.sync += scan_cand.eq(scan_active & free & scan_row.good)
                m.next = "SCAN"
            with m.State("SCAN"):
                m.d.sync += [
                    win_pos.eq(position), win_ev.eq(Mux(hit, pos1 ^ scan_row.r, pos2 ^ r2)),
                    redrawn.eq(~hit), win_r.eq(Mux(hit, scan_row.r, r2)),
                    restore.eq(~self.fallback & (on_way1 | on_way2)),
                    restore_ev.eq(Mux(on_way1, way1 ^ scan_row.r, way2 ^ r2)),
                ]  # fmt: skip
                with m.If(self.fallback):
                    m.d.sync += [restore.eq(use_skip), restore_ev.eq(Mux(hit, pos1 ^ scan_row.r, pos2 ^ r2)), restore_plane.eq(chosen)]
                with m.If(restore_passed):
                    m.d.sync += looked_at.eq(restore_plane)
                    m.next = "TAKE2"
                with m.Else():
                    m.d.sync += restore_plane.eq(chosen)
                    m.next = "PUT"
            with m.State("TAKE2"):
                m.d.sync += [
                    Value.cast(scan_row).eq(select([Value.cast(row) for row in rows], looked_at)),
                    scan_cand.eq(select(active, looked_at) & select([row.skip for row in rows], looked_at)),
                ]  # fmt: skip
                m.next = "SCAN2"
            with m.State("SCAN2"):
                m.d.sync += [restore.eq(1), restore_ev.eq(Mux(hit, pos1 ^ scan_row.r, pos2 ^ r2))]
                m.next = "PUT"
            with m.State("PUT"):
                m.d.sync += [
                    self.done.eq(1), self.plane.eq(chosen), self.evi.eq(evi_of(p, chosen, win_ev)),
                    Value.cast(self.next_path).eq(self.path),
                    self.next_path.plane_ptr.eq((chosen + 1) & (planes - 1)),
                ]  # fmt: skip
                with m.If(redrawn):
                    m.d.sync += self.next_path.lfsr.eq(lfsr)
                bit = (Const(1, evs) << restore_ev)[:evs]
                for n in range(planes):
                    out = self.next_path.planes[n]
                    with m.If(chosen == n):
                        m.d.sync += [out.ptr.eq(win_pos + 1), out.r.eq(win_r)]
                    with m.If(restore & (restore_plane == n)):
                        m.d.sync += [out.good.eq(rows[n].good | bit), out.skip.eq(rows[n].skip & ~bit)]
                m.next = "IDLE"
        return m

    def _in_plane(self, evi: Value) -> Value:
        width = (self.params.evs - 1).bit_length()
        return evi[:width] if width else Const(0, 1)
