"""Lockstep: the golden model follows the hardware record by record and frame by frame; the first difference ends the test.

:class:`Lockstep` reads nothing but the event stream of the harness (:mod:`verif.harness.stream`), so it works beside the simulation, in a process
of its own (:mod:`verif.lockstep_process`), or on a stream kept in a file. What it checks:

* every commit record: sequence, time, legality of the free choices, outputs, the whole state it leaves (both owners, path rows included);
* every frame that leaves: the next one that a record asked for, all fields, payload as in host memory, ICRC, timestamp as DEPART says;
* every frame delivered: dropped for the reason the codec names, or shown by the next record of its plane and owner, all fields equal;
* every completion that the host reads: the next one of its owner, once;
* path rows that the responder read: a row of the requestor within a few clocks;
* liveness: a background step that is due comes within ``bound`` clocks.
"""

from __future__ import annotations

import zlib
from collections import deque
from struct import Struct
from typing import Any

from hdl.params import Params
from model.config import StepError
from model.spec import Kind
from model.wire_packet import Packet
from verif.harness.stream import BAD, EventType, events
from verif.lockstep_error import LockstepError, Mismatch
from verif.lockstep_side import Side
from verif.records import OWNER_NAMES, kind_name

_COMPLETION = Struct("<5I")
_NEEDS_ROOM = frozenset({Kind.SEND, Kind.PROBE, Kind.EMIT_ACK, Kind.EMIT_NACK, Kind.EMIT_SACK})
_NIC = "AB"
FRAMES_KEPT = 20_000  # sent frames that a later event may name


class Lockstep:
    """Golden NICs beside the two hardware NICs.

    ``bound``: clocks within which a due background step must come; ``send_bound``: the same for steps that need room in a port (None: not
    watched, for tests whose fabric stands still on purpose). ``cross_clocks``: how old a path row may be that the responder reads.
    """

    def __init__(self, params: Params, memory_bytes: int, bound: int = 4000, send_bound: int | None = 40_000, cross_clocks: int = 64) -> None:
        self.p, self.bound, self.send_bound = params, bound, send_bound
        self.sides = [Side(params, memory_bytes, cross_clocks) for _ in range(2)]
        self.frames: dict[int, Packet | bytes] = {}
        self._frame_order: deque[int] = deque()
        self.records = 0
        self.clock = 0
        self._waiting: dict[tuple[int, int, int, int, int, int], int] = {}
        self._next_check = bound // 4
        self._tick_at = [0, 0]  # newest tick per NIC and the clock at which it was seen
        self._tick_clock = [0, 0]

    def feed(self, chunk: bytes) -> None:
        """Events in order. LockstepError at the first difference."""
        for kind, nic, part, flags, clock, number, aux, data in events(chunk):
            self.clock = clock
            try:
                if kind == EventType.RECORD:
                    self.records += 1
                    self.sides[nic].record(part, clock, data)
                elif kind == EventType.SENT:
                    self._sent(nic, part, flags, number, data)
                elif kind == EventType.DELIVERED:
                    frame = data or self.frames.get(number)
                    if frame is None:
                        raise Mismatch(f"plane {part}: frame {number} was delivered, but never sent")
                    self.sides[nic].wire.frame_arrived(part, frame, clock, bool(flags & BAD))
                elif kind == EventType.COMPLETION:
                    self.sides[nic].completion(_COMPLETION.unpack(data))
                elif kind == EventType.MEMORY:
                    self.sides[nic].wire.memory[aux : aux + len(data)] = data
                elif kind == EventType.LINK:
                    if not aux:
                        self.sides[nic].wire.link(part, False, clock)
                elif kind == EventType.ERROR:
                    raise Mismatch(data.decode())
                if clock >= self._next_check:
                    self._check_liveness(clock)
            except (Mismatch, StepError) as problem:
                raise LockstepError(self._report(nic, kind, part, clock, problem)) from problem

    def _sent(self, nic: int, plane: int, flags: int, number: int, frame: bytes) -> None:
        if flags & BAD:
            return
        self.frames[number] = self.sides[nic].wire.frame_sent(plane, frame)
        self._frame_order.append(number)
        if len(self._frame_order) > FRAMES_KEPT:
            del self.frames[self._frame_order.popleft()]

    # --- liveness -----------------------------------------------------------------------------------------------------------------------
    def _check_liveness(self, clock: int) -> None:
        self._next_check = clock + self.bound // 4
        still: dict[tuple[int, int, int, int, int, int], int] = {}
        for nic, side in enumerate(self.sides):
            side.check_late(clock)
            newest = max(side.tick)
            if newest != self._tick_at[nic]:
                self._tick_at[nic], self._tick_clock[nic] = newest, clock
            now = newest + max(0, (clock - self._tick_clock[nic]) // self.p.tick_div - 1)
            for owner, qp, kind, which in side.pending(clock, now):
                # Kinds that name nothing are told apart by how many of them there were.
                count = 0 if kind in (Kind.RETIRE, Kind.JUDGE, Kind.COMPLETE) else side.kinds[owner, kind]
                key = (nic, owner, qp, kind, which, count)
                since = self._waiting.get(key, clock)
                still[key] = since
                limit = self.send_bound if kind in _NEEDS_ROOM else self.bound
                if limit is not None and clock - since > limit:
                    raise Mismatch(f"NIC {_NIC[nic]}, {OWNER_NAMES[owner]}: {Kind(kind).name} of QP {qp} (argument {which:#x}) has been due since "
                                   f"clock {since} and has not come within {limit} clocks")  # fmt: skip
        self._waiting = still

    # --- end ----------------------------------------------------------------------------------------------------------------------------
    def finish(self, clock: int, quiet: bool = True) -> dict[str, Any]:
        """The end of a test. ``quiet``: everything has come to rest, so nothing may be on its way. Returns what was compared."""
        self.clock = clock
        found: list[str] = []
        if quiet:
            for nic, side in enumerate(self.sides):
                found += [f"NIC {_NIC[nic]}: {text}" for text in side.wire.unfinished(clock)]
                for queue in side.completions:
                    found += [f"NIC {_NIC[nic]}: the host never read {completion}" for completion in queue]
                tick = max(side.tick)
                found += [f"NIC {_NIC[nic]}, {OWNER_NAMES[owner]}: {Kind(kind).name} of QP {qp} is due"
                          for owner, qp, kind, _ in side.pending(clock, tick)]  # fmt: skip
                for qp, state in enumerate(side.req.qp):
                    if state.state == 3 and state.idle and (state.inflight or any(entry.credit for entry in state.ev)):
                        credits = [entry.credit for entry in state.ev]
                        found.append(f"NIC {_NIC[nic]}, QP {qp}: idle with {state.inflight} bytes in flight and credits {credits}")
        if found:
            raise LockstepError("not at rest at the end:\n" + "\n".join(f"  {text}" for text in found[:20]))
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """Counts, and check sums of the pages of memory that the golden NICs have written."""
        return {
            "records": self.records,
            "kinds": {f"{OWNER_NAMES[owner]}.{Kind(kind).name.lower()}": sum(side.kinds[owner, kind] for side in self.sides)
                      for owner, kind in sorted(set().union(*(side.kinds for side in self.sides)))},
            "sent": [side.wire.sent for side in self.sides],
            "delivered": [side.wire.delivered for side in self.sides],
            "lost_in_port": [side.wire.lost_in_port for side in self.sides],
            "payload_bytes": [side.wire.payload_bytes for side in self.sides],
            "no_resource": [side.no_resource for side in self.sides],
            "drops": [{cause.name.lower(): count for cause, count in side.drops().items() if count} for side in self.sides],
            "pages": [{page: zlib.crc32(side.wire.memory[page << 12 : page + 1 << 12]) for page in sorted(side.wire.pages)} for side in self.sides],
        }  # fmt: skip

    # --- report -------------------------------------------------------------------------------------------------------------------------
    def _report(self, nic: int, kind: int, part: int, clock: int, problem: Exception) -> str:
        side = self.sides[nic]
        where = f"NIC {_NIC[nic]}, clock {clock}: look at clocks {max(0, clock - 300)} to {clock + 20} ({self.records} records compared)"
        text = problem.table() if isinstance(problem, Mismatch) else f"illegal step: {problem}"
        lines = [where, text]
        if kind == EventType.RECORD:
            decoder = side.decoders[part]
            try:
                record = decoder.decode(side.last[part][-1][1])
            except (ValueError, KeyError):  # not even a record: the message above says all
                return "\n".join(lines)
            lines.insert(1, f"{OWNER_NAMES[part]} record {record['seq']}, {record['kind']} of QP {record['qp']}, tick {record['tick']}")
            lines.append(f"record: {record['body']}")
        for owner in (0, 1):
            lines.append(f"newest records of the {OWNER_NAMES[owner]}:")
            for when, raw in list(side.last[owner])[-8:]:
                head = side.decoders[owner].head(side.decoders[owner].words(raw))
                lines.append(f"  clock {when}  seq {head[2]}  tick {head[3]}  QP {head[1]}  {kind_name(head[0])}")
        return "\n".join(lines)


__all__ = ["Lockstep", "LockstepError"]
