"""The receive path of one plane: frames in, descriptors and payload out."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.host.registers import drop_pulse
from hdl.layouts import GLOBAL_CONFIG, Layouts
from hdl.net.axis import axis_beat, payload_beat
from hdl.net.frame_store import FrameStore, block_depth
from hdl.params import Params
from hdl.wire.check import FRAME_NOTE, FrameCheck, frame_word
from hdl.wire.extract import FrameExtract
from hdl.wire.headers import EXT_AT
from model import spec


def need_equal_widths(params: Params, what: str) -> None:
    """Refuses an instance whose ports are narrower than its inside: the width converters come with the wide presets."""
    if params.port_width != params.data_width:
        raise ValueError(
            f"{what} of preset {params.name!r}: port_width = {params.port_width} and data_width = {params.data_width} differ; "
            "this version moves frames at one width, choose them equal"
        )


class Parser(wiring.Component):
    """Stores each frame until all checks without state are known (:mod:`hdl.wire.check`); then it becomes ``desc`` and ``payload``, or one
    ``drop`` pulse.

    Holds at least two maximum frames. One beat a clock, sustained while the outputs drain; a minimum frame's descriptor appears about ten
    clocks after its last beat. ``desc`` is there before its payload and does not wait for it; ``payload`` carries data frames with
    ``plen`` > 0 only, in the order of ``desc``.
    """

    def __init__(self, params: Params, *, stallable: bool = True) -> None:
        need_equal_widths(params, "parser")
        self.p = params
        self.width = params.port_width
        self.stallable = stallable
        beats = -(-spec.MAX_FRAME // (self.width // 8))
        self.depth = block_depth(2 * beats + FrameCheck.MARGIN)
        # Every frame that is kept has at least the headers up to the BTH.
        self.frames = self.depth // (EXT_AT[True] // (self.width // 8) + 1) + 2
        super().__init__({
            "rx": In(stream.Signature(axis_beat(self.width))),
            "global_config": In(GLOBAL_CONFIG),
            "plane": In(params.plane_bits),
            "desc": Out(stream.Signature(Layouts(params).rx_frame)),
            "payload": Out(stream.Signature(payload_beat(self.width))),
            "drop": Out(drop_pulse()), "rx_frame": Out(1), "rx_bytes": Out(16),
        })  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.check = check = FrameCheck(self.width, stallable=self.stallable)
        m.submodules.store = store = FrameStore(frame_word(self.width), self.depth)
        m.submodules.notes = notes = SyncFIFOBuffered(width=FRAME_NOTE.size, depth=self.frames)
        m.submodules.extract = extract = FrameExtract(self.p)
        wiring.connect(m, wiring.flipped(self.rx), check.rx)
        wiring.connect(m, store.r, extract.words)
        wiring.connect(m, extract.desc, wiring.flipped(self.desc))
        wiring.connect(m, extract.payload, wiring.flipped(self.payload))
        m.d.sync += check.room.eq(store.level < self.depth - FrameCheck.MARGIN)
        m.d.comb += [
            check.global_config.eq(self.global_config),
            extract.global_config.eq(self.global_config),
            extract.plane.eq(self.plane),
            store.w_valid.eq(check.w_valid),
            store.w_data.eq(check.w_data),
            store.commit.eq(check.commit),
            store.abort.eq(check.abort),
            notes.w_data.eq(check.note),
            notes.w_en.eq(check.commit),
            extract.notes.payload.as_value().eq(notes.r_data),
            extract.notes.valid.eq(notes.r_rdy),
            notes.r_en.eq(extract.notes.ready),
            self.drop.eq(check.drop),
            self.rx_frame.eq(check.rx_frame),
            self.rx_bytes.eq(check.rx_bytes),
        ]
        return m
