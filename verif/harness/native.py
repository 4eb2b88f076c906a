"""The harness library as Python sees it: the functions `h_*` of harness.cpp, which lives in the simulator's own executable."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

_i32, _i64, _u64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "h_create": (None, (_i32, _i32, _i32, _u64, _u64, _i32, _i32, ctypes.c_double)),
    "h_in_words": (_i32, ()),
    "h_out_words": (_i32, ()),
    "h_clock": (_u64, ()),
    "h_still": (_u64, ()),
    "h_tick": (ctypes.c_uint32, (_i32,)),
    "h_arm": (None, (_u64, _u64, _u64, _u64, _u64)),
    "h_events": (ctypes.c_void_p, (ctypes.POINTER(_u64),)),
    "h_events_clear": (None, ()),
    "h_set": (_i32, (_i32, _i32, ctypes.c_char_p, _i64)),
    "h_counter": (_i64, (_i32, _i32, ctypes.c_char_p)),
    "h_rule": (_i32, (_i32, _i32, _i32, _i32, _i32, _i32, _i64, _i64, _i64, _i64, _i32, _i64)),
    "h_rule_clear": (None, (_i32,)),
    "h_rule_hits": (_i64, (_i32,)),
    "h_inject": (None, (_i32, _i32, ctypes.c_char_p, _u64, _i64, _i32)),
    "h_queue": (None, (_i32, ctypes.c_void_p, _i32)),
    "h_cq": (None, (_i32, ctypes.c_void_p, ctypes.c_uint32)),
    "h_memory": (ctypes.c_void_p, (_i32,)),
    "h_memory_write": (None, (_i32, _u64, ctypes.c_char_p, _u64)),
    "h_error_range": (None, (_i32, _u64, _u64, _i32, _i32)),
    "h_error_ranges_clear": (None, (_i32,)),
    "h_pcap": (None, (ctypes.c_char_p,)),
}

ACTIONS = ("drop", "delay", "corrupt", "duplicate", "mark", "trim", "trim_lasthop", "blackhole")
LINK_COUNTERS = ("sent", "delivered", "dropped", "directed_drop", "blackhole", "down", "corrupted", "duplicated", "reordered", "marked",
                 "trimmed", "delayed", "injected", "bad")  # fmt: skip
LOSSES = ("dropped", "directed_drop", "blackhole", "down", "bad")
DATA = (0xC6, 0xCB)  # range of data opcodes
FOREVER = (1 << 64) - 1


class Native:
    """One system of two NICs. Creating it replaces the one before. ValueError for a name or number that does not exist."""

    def __init__(self, planes: int, data_width: int, port_width: int, memory_bytes: int, seed: int, req_bits: int, rsp_bits: int,
                 clock_ns: float = 8.0) -> None:  # fmt: skip
        self.lib = ctypes.CDLL(None)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, list(arguments)
        self.planes, self.memory_bytes = planes, memory_bytes
        self.lib.h_create(planes, data_width, port_width, memory_bytes, seed, (req_bits + 31) // 32, (rsp_bits + 31) // 32, clock_ns)
        self._size = _u64()

    def _where(self, nic: int, plane: int) -> None:
        if nic not in (0, 1) or not 0 <= plane < self.planes:
            raise ValueError(f"there is no NIC {nic} with plane {plane}: NICs are 0 and 1, planes 0 to {self.planes - 1}")

    def set(self, name: str, value: int, nic: int | None = None, plane: int | None = None) -> None:
        """Sets a number of links (``nic`` = sender, ``plane``), of a memory or of a host; None means all of them."""
        for n in (0, 1) if nic is None else (nic,):
            for p in range(self.planes) if plane is None else (plane,):
                self._where(n, p)
                if self.lib.h_set(n, p, name.encode(), int(value)):
                    raise ValueError(f"the harness has nothing called {name!r} to set")

    def counter(self, name: str, nic: int, plane: int = 0) -> int:
        """A counter of a link (``nic`` = sender), memory or host."""
        self._where(nic, plane)
        value: int = self.lib.h_counter(nic, plane, name.encode())
        if value < 0:
            raise ValueError(f"the harness counts nothing called {name!r}")
        return value

    def rule(self, action: str, *, nic: int | None = None, plane: int | None = None, opcode: int | tuple[int, int] | None = None,
             rtx: int | None = None, qp: int | None = None, psn: int | None = None, ev: int | None = None, skip: int = 0,
             count: int | None = 1, argument: int = -1) -> int:  # fmt: skip
        """A directed fault on frames that match (``nic`` = sender, ``qp`` = BTH.DestQP, ``ev`` = port << 16 | label): leaves out the first
        ``skip`` matches and hits ``count`` (None: all) of them. ``argument``: clocks (delay, duplicate), bit (corrupt). Returns its number.
        """
        if action not in ACTIONS:
            raise ValueError(f"there is no action {action!r}: choose one of {', '.join(ACTIONS)}")
        if argument < 0 and action in ("delay", "duplicate"):
            argument = 0 if action == "duplicate" else 1000
        low, high = (0, 255) if opcode is None else (opcode, opcode) if isinstance(opcode, int) else opcode

        def any_(value: int | None) -> int:
            return -1 if value is None else value

        number: int = self.lib.h_rule(any_(nic), any_(plane), low, high, any_(rtx), any_(qp), any_(psn), any_(ev), skip, any_(count),
                                      ACTIONS.index(action), argument)  # fmt: skip
        return number

    def rule_hits(self, rule: int) -> int:
        """How many frames the rule has hit."""
        hits: int = self.lib.h_rule_hits(rule)
        return hits

    def rule_clear(self, rule: int) -> None:
        """Ends the rule."""
        self.lib.h_rule_clear(rule)

    def inject(self, nic: int, plane: int, frame: bytes, delay: int = 0, bad: bool = False) -> None:
        """Delivers ``frame`` to NIC ``nic`` on ``plane`` in ``delay`` clocks, ``bad``: flagged by the MAC."""
        self._where(nic, plane)
        if not 0 < len(frame) <= 65535:
            raise ValueError(f"a frame of {len(frame)} bytes cannot be injected: 1 to 65535 bytes")
        self.lib.h_inject(nic, plane, frame, len(frame), delay, int(bad))

    def queue(self, nic: int, operations: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Register operations (op, address, value, mask, tag, limit) for the host of ``nic`` (host.h, HostOp)."""
        words = [word for operation in operations for word in operation]
        self.lib.h_queue(nic, (ctypes.c_uint32 * len(words))(*words), len(words) // 6)

    def completion_registers(self, registers: list[int], pop: int) -> None:
        """Addresses of the completion queue's five registers and of the one that pops."""
        for nic in (0, 1):
            self.lib.h_cq(nic, (ctypes.c_uint32 * 5)(*registers), pop)

    def arm(self, clock: int = FOREVER, event_bytes: int = 1 << 20, completions: int = FOREVER, answers: int = FOREVER,
            quiet: int = FOREVER) -> None:  # fmt: skip
        """When `wake` rises next: at ``clock``, with so many event bytes, total completions or answers, or after ``quiet`` still clocks."""
        self.lib.h_arm(min(clock, FOREVER), event_bytes, completions, answers, quiet)

    @property
    def clock(self) -> int:
        """Clocks since the end of reset."""
        value: int = self.lib.h_clock()
        return value

    @property
    def still(self) -> int:
        """Clocks since anything moved or was on its way."""
        value: int = self.lib.h_still()
        return value

    def drain(self) -> bytes:
        """All events since the last call."""
        address = self.lib.h_events(ctypes.byref(self._size))
        chunk = ctypes.string_at(address, self._size.value) if self._size.value else b""
        self.lib.h_events_clear()
        return chunk

    def _range(self, address: int, length: int) -> None:
        if not 0 <= address <= address + length <= self.memory_bytes:
            raise ValueError(f"host memory ends at {self.memory_bytes:#x}: there are no {length} bytes at {address:#x}")

    def read(self, nic: int, address: int, length: int) -> bytes:
        """Bytes of host memory."""
        self._range(address, length)
        return ctypes.string_at(self.lib.h_memory(nic) + address, length)

    def write(self, nic: int, address: int, data: bytes) -> None:
        """Writes host memory; the event stream says so."""
        self._range(address, len(data))
        self.lib.h_memory_write(nic, address, bytes(data), len(data))

    def error_range(self, nic: int, low: int, high: int, read: bool = True, write: bool = True) -> None:
        """Host memory in [low, high) answers reads and / or writes with SLVERR from now on."""
        self.lib.h_error_range(nic, low, high, int(read), int(write))

    def clear_error_ranges(self, nic: int) -> None:
        """All of host memory works again."""
        self.lib.h_error_ranges_clear(nic)

    def capture(self, prefix: str) -> None:
        """Starts capture files ``prefix``<plane>_sent.pcap and _delivered.pcap; "" ends the capture."""
        self.lib.h_pcap(prefix.encode())
