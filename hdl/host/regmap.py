"""The register map of the NIC, the only place where it is written down: decoder, drivers and documentation derive from it.

AXI4-Lite, 32-bit registers, byte addresses. A command is posted by writing its data words (a layout of :mod:`hdl.layouts`, least significant
word first), then ``CMD_ARG``, then ``CMD``; ``CMD_STATUS`` shows the answer once its busy bit is clear. A write to ``CMD`` while one is busy is ignored
and counted in ``MAILBOX_ERRORS``. Unmapped addresses read 0 and answer SLVERR.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.spec import Drop


@dataclass(frozen=True)
class Register:
    """One register: byte ``address``, ``access`` (ro, rw, wo, w1 = a write acts), meaning."""

    name: str
    address: int
    access: str
    doc: str


ID_VALUE = 0x4D524331  # "MRC1"
VERSION_VALUE = 0x0001_0000
DATA_WORDS = 16
COUNTER_BASE = 0x200
COUNTERS: tuple[str, ...] = tuple(f"drop_{cause.name.lower()}" for cause in Drop)
PLANE_COUNTER_BASE = 0x400
PLANE_COUNTERS: tuple[str, ...] = ("tx_frames", "rx_frames", "tx_dropped", "rx_bytes", "tx_bytes")
PLANE_STRIDE = 0x40

REGISTERS: tuple[Register, ...] = (
    Register("ID", 0x000, "ro", "the letters MRC1"),
    Register("VERSION", 0x004, "ro", "major in the high half, minor in the low half; software refuses another major"),
    Register("PARAMS0", 0x008, "ro", "qps in 15:0, planes in 23:16, log2(window) in 31:24"),
    Register("PARAMS1", 0x00C, "ro", "EVs per plane in 15:0, message slots in 31:16"),
    Register("PORT_STATUS", 0x010, "ro", "bit n = 1: port n is up (link and administrative state)"),
    Register("TICK", 0x014, "ro", "the 32-bit tick counter, 128 ns"),
    Register("IRQ_ENABLE", 0x018, "rw", "bit 0: irq while a completion waits"),
    Register("MAILBOX_ERRORS", 0x01C, "ro", "commands written while one was busy"),
    *(Register(f"DATA{i}", 0x040 + 4 * i, "rw", f"command data word {i}") for i in range(DATA_WORDS)),
    Register("CMD_ARG", 0x080, "rw", "QP index in 15:0, EV / region / port index in 31:16"),
    Register("CMD", 0x084, "w1", "spec.Command in 7:0; starts the command"),
    Register("CMD_STATUS", 0x088, "ro", "bit 31 busy; spec.PostStatus in 7:0"),
    Register("CQ_COUNT", 0x0C0, "ro", "completions waiting"),
    Register("CQ_INFO", 0x0C4, "ro", "head entry: bit 31 valid, bit 30 recv, status in 23:16, QP index in 15:0; 0 when empty"),
    Register("CQ_WR_ID_LO", 0x0C8, "ro", "head entry: wr_id 31:0"),
    Register("CQ_WR_ID_HI", 0x0CC, "ro", "head entry: wr_id 63:32"),
    Register("CQ_LENGTH", 0x0D0, "ro", "head entry: bytes of the message"),
    Register("CQ_IMM", 0x0D4, "ro", "head entry: immediate (recv)"),
    Register("CQ_POP", 0x0D8, "w1", "removes the head entry; nothing happens when empty"),
    *(Register(f"CNT_{name.upper()}", COUNTER_BASE + 4 * i, "ro", f"frames or items of feedback: {name}") for i, name in enumerate(COUNTERS)),
)
BY_NAME: dict[str, Register] = {r.name: r for r in REGISTERS}


def plane_counter(plane: int, name: str) -> int:
    """Byte address of a counter of one plane."""
    return PLANE_COUNTER_BASE + PLANE_STRIDE * plane + 4 * PLANE_COUNTERS.index(name)
