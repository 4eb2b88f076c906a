"""Every size of an instance, checked when elaborated, and the presets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from model import spec


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _bits(count: int) -> int:
    """Bits of an index into ``count`` things, at least 1."""
    return max(1, (count - 1).bit_length())


@dataclass(frozen=True)
class Params:
    """Sizes of one NIC instance.

    Every count that indexes memory is a power of two. :meth:`__post_init__` refuses a wrong size with what, why and what would be right.
    """

    name: str = "tiny"
    qps: int = 2  # queue pairs
    planes: int = 2  # network ports
    evs: int = 2  # EVs per plane and QP
    active_evs: int = 1  # EVs per plane that are ACTIVE by default
    window: int = 128  # PSNs a QP may have unretired (our record ring W), and the largest mpr offered as responder
    msg_slots: int = 16  # unfinished messages per QP
    rq_entries: int = 16  # receive entries per QP
    max_wimm: int = 32  # WriteIMMs in flight that the responder can stash per QP
    regions: int = 8  # memory regions
    sack_queue: int = 16  # answers waiting to leave, all QPs
    data_width: int = 64  # bits of the internal path and of the host AXI port
    port_width: int = 64  # bits of a plane's AXI streams
    mtu: int = 4096  # largest path MTU supported
    qpn_base: int = 0x100  # QP number of QP index 0; a multiple of qps
    tick_div: int = 16  # clocks per 128 ns tick
    addr_width: int = 64  # bits of host addresses
    trace: bool = False  # commit trace ports

    def __post_init__(self) -> None:
        def need(ok: bool, what: str, why: str) -> None:
            if not ok:
                raise ValueError(f"preset {self.name!r}: {what}; {why}")

        for field in ("qps", "planes", "evs", "window", "msg_slots", "rq_entries", "max_wimm", "regions", "sack_queue"):
            value = getattr(self, field)
            need(_power_of_two(value), f"{field} = {value}", "it indexes a memory, so it must be a power of two")
        need(1 <= self.qps <= 256, f"qps = {self.qps}", "1 to 256 are supported")
        need(1 <= self.planes <= 8, f"planes = {self.planes}", "1 to 8 ports are supported")
        need(1 <= self.evs and self.evs * self.planes <= 256, f"evs = {self.evs}", "a record names an EV with 8 bits")
        need(1 <= self.active_evs <= self.evs, f"active_evs = {self.active_evs}", f"it must lie in 1..evs = {self.evs}")
        need(128 <= self.window <= 4096, f"window = {self.window}", "mpr is a multiple of 128 packets and 64 rows of 64 are the most")
        need(2 <= self.msg_slots <= 512, f"msg_slots = {self.msg_slots}", "a record names a message with at most 9 bits")
        need(self.max_wimm >= 2, f"max_wimm = {self.max_wimm}", "at least two WriteIMMs must fit")
        need(self.data_width in (64, 128, 256, 512), f"data_width = {self.data_width}", "64, 128, 256 or 512 bits")
        need(self.port_width in (64, 128, 256, 512), f"port_width = {self.port_width}", "64, 128, 256 or 512 bits")
        need(self.port_width <= self.data_width, f"port_width = {self.port_width}", f"at most data_width = {self.data_width}")
        need(self.mtu in spec.MTUS, f"mtu = {self.mtu}", f"one of {spec.MTUS}")
        need(self.qpn_base % self.qps == 0 and self.qpn_base >= spec.FIRST_QPN, f"qpn_base = {self.qpn_base:#x}",
             f"a multiple of qps = {self.qps} above the reserved numbers 0-2")  # fmt: skip
        need(self.qpn_base + self.qps <= 1 << 24, f"qpn_base = {self.qpn_base:#x}", "QP numbers have 24 bits")
        need(self.tick_div >= 1, f"tick_div = {self.tick_div}", "at least one clock per tick")
        need(32 <= self.addr_width <= 64, f"addr_width = {self.addr_width}", "32 to 64 bits")

    @property
    def qp_bits(self) -> int:
        return _bits(self.qps)

    @property
    def plane_bits(self) -> int:
        return _bits(self.planes)

    @property
    def ev_bits(self) -> int:
        """Bits of an EV's index inside its plane."""
        return _bits(self.evs)

    @property
    def total_evs(self) -> int:
        """EVs of one QP. EV index = plane x evs + index inside the plane."""
        return self.planes * self.evs

    @property
    def evi_bits(self) -> int:
        """Bits of an EV index of a QP."""
        return _bits(self.total_evs)

    @property
    def rows(self) -> int:
        """Rows of 64 PSNs in a bitmap ring."""
        return self.window // 64

    @property
    def row_bits(self) -> int:
        return _bits(self.rows)

    @property
    def window_bits(self) -> int:
        return _bits(self.window)

    @property
    def slot_bits(self) -> int:
        return _bits(self.msg_slots)

    @property
    def cq_depth(self) -> int:
        """Completion entries: every message slot and receive entry can complete without the host polling."""
        return self.qps * (self.msg_slots + self.rq_entries)

    def with_(self, **changes: object) -> Params:
        """A copy with some sizes changed, checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]


PRESETS: dict[str, Params] = {
    "tiny": Params(),
    "board": Params(name="board", qps=8, planes=2, evs=8, active_evs=6, msg_slots=16, rq_entries=64, regions=16, sack_queue=32),
    "full": Params(name="full", qps=64, planes=8, evs=32, active_evs=14, window=1024, msg_slots=64, rq_entries=64, max_wimm=64,
                   regions=64, sack_queue=128, data_width=512, port_width=64),
}  # fmt: skip


def preset(name: str, **changes: object) -> Params:
    """The preset ``name`` with ``changes``; an unknown name is refused with the list of the known ones."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name].with_(**changes)
