"""How a gradient travels, the same on every backend: connection, buffers, messages, and what goes wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass

from model.config import EvConfig, GlobalConfig, QpConfig, Sizes, default_path_credit
from model.spec import Health

RKEY = 0x4D_52_43_00
REGION = 0  # index of the region behind RKEY (its low bits)
VA = 0x7000_0000_0000  # the region's virtual address at the peer
SEND_AT = 0x1_0000  # host address of the gradient that leaves
RECEIVE_AT = 0x4_0003  # where the peer's gradient arrives; odd on purpose
REGION_BYTES = 0x2_0000
MTU_CODE = 2  # 1024 bytes
QP = 0
TIMER_EXP = 6  # T = 66 us: several round trips of this fabric; dead paths are probed once per T


@dataclass(frozen=True)
class Wrong:
    """Faults of the fabric during the run, and the path that dies: [first, last) step as a share of the run."""

    drop: float = 0.01
    reorder: float = 0.02
    mark: float = 0.005
    death: tuple[float, float] = (0.3, 0.6)
    dead_path: tuple[int, int] = (0, 1)  # plane, EV inside the plane


WRONG = Wrong()


def split(length: int) -> list[tuple[int, int]]:
    """The messages of one gradient as (offset, length): a plain Write for the first part, a WriteIMM for the rest, whose completion at the
    peer says that all of it has arrived."""
    first = length * 2 // 3 + 1
    return [(0, first), (first, length - first)]


def path_is_dead(step: int, steps: int) -> bool:
    """Whether the path of :class:`Wrong` is dead in ``step``."""
    return WRONG.death[0] <= step / steps < WRONG.death[1]


def note(step: int, steps: int) -> str:
    """What to tell the viewer about ``step``."""
    was, now = step > 0 and path_is_dead(step - 1, steps), path_is_dead(step, steps)
    name = f"path {WRONG.dead_path[0]}.{WRONG.dead_path[1]}"
    return f"{name} dies" if now and not was else f"{name} is back" if was and not now else ""


def ev_value(side: int, evi: int) -> int:
    """The EV that NIC ``side`` uses under index ``evi``; different everywhere, so that a path is known by its value alone."""
    return (0xA000 + 0x1000 * side + evi) << 16 | 0x0100 * (side + 1) + evi


def global_config(side: int) -> GlobalConfig:
    """Addresses of NIC ``side`` (0 = A, 1 = B)."""
    return GlobalConfig(local_ip6=(0xFD00 << 112) + 0x100 * side, local_ip4=0x0A00_0000 + 0x100 * side, local_mac=0x02_00_00_00_00_00 + 0x100 * side)


def qp_config(side: int, sizes: Sizes) -> QpConfig:
    """The connection of NIC ``side`` to the other one. The PSNs of A wrap early in the run."""
    other = global_config(1 - side)
    start = (0xFFFF80, 0x001000)
    return QpConfig(
        dest_qpn=sizes.qpn_base + QP, mtu=MTU_CODE, peer_ip=other.local_ip6, peer_mac=other.local_mac, sq_psn=start[side], rq_psn=start[1 - side],
        req_mpr=sizes.window, rsp_mpr=sizes.window, cwnd=1 << 17, timer_exp=TIMER_EXP, peer_max_wimm=sizes.max_wimm, ev_min_active=sizes.planes,
        path_credit=default_path_credit(sizes.window, sizes.active_evs * sizes.planes),
    )  # fmt: skip


def ev_configs(side: int, sizes: Sizes) -> list[EvConfig]:
    """The EV profile: on each plane the first ``active_evs`` are ACTIVE, the others BACKUP."""
    return [EvConfig(value=ev_value(side, evi), active=int(evi % sizes.evs < sizes.active_evs), health=Health.GOOD) for evi in range(sizes.total_evs)]
