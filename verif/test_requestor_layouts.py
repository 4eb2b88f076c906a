"""The golden requestor's state, configuration and results bear the names and widths of hdl/layouts.py and hdl/trace.py."""

from __future__ import annotations

from dataclasses import fields

import pytest
from amaranth.hdl import Shape
from amaranth.lib import data

from hdl import layouts, trace
from hdl.params import Params, preset
from model import config, req_results
from model.paths import EvEntry, Path, PlaneRow
from model.req_state import CTX_FIELDS, Message, ProbeSlot, SendRecord

NAMES = {
    "control": "ControlOut", "port": "PortOut", "qp_error": "QpErrorOut", "post": "PostOut", "send": "SendOut", "depart": "DepartOut",
    "sack": "SackOut", "nack": "NackOut", "ack": "AckOut", "retire": "RetireOut", "judge": "JudgeOut", "timeout": "TimeoutOut",
    "probe": "ProbeOut", "ev_age": "EvAgeOut", "complete": "CompleteOut",
}  # fmt: skip
INPUTS = {"op", "index", "data", "wr", "room", "rx", "probe", "tick", "dropped", "read_error"}  # what the step is given
GIVEN = {"depart": {"psn", "evi", "send_tick"}}


def names(layout: data.StructLayout) -> list[str]:
    return [name for name, _ in layout]


@pytest.mark.parametrize(("model", "layout"), [
    (config.GlobalConfig, layouts.GLOBAL_CONFIG), (config.QpConfig, layouts.QP_CONFIG), (config.EvConfig, layouts.EV_CONFIG),
    (config.Region, layouts.REGION_CONFIG), (config.WorkRequest, layouts.WORK_REQUEST),
])  # fmt: skip
def test_configuration(model: type[config.Config], layout: data.StructLayout) -> None:
    """MRC-REQ-050: names, order and widths, so that pack() is the command's data words."""
    assert list(model.FIELDS) == [(name, Shape.cast(field.shape).width) for name, field in layout]
    assert [f.name for f in fields(model)] == names(layout)
    values = {name: (0x123456789ABCDEF0_0FEDCBA987654321 >> i) & ((1 << bits) - 1) for i, (name, bits) in enumerate(model.FIELDS)}
    assert model(**values).pack() == layout.const(values).as_value().value  # type: ignore[attr-defined]


def test_state() -> None:
    """Every field of the compared state, and of the memories behind it, exists in the model under the same name."""
    lay = layouts.Layouts(Params())
    assert list(CTX_FIELDS) == names(lay.req_ctx)
    assert [f.name for f in fields(ProbeSlot)] == names(lay.probe_slot)
    assert [f.name for f in fields(PlaneRow)] == names(lay.plane_row)
    assert {f.name for f in fields(Path)} == {*names(lay.path), "evs"}
    assert {f.name for f in fields(EvEntry)} == {*names(lay.ev_entry), "value"}
    assert {f.name for f in fields(Message)} == {*names(lay.message), "packets"}
    assert {f.name for f in fields(SendRecord)} == {*names(lay.send_record), "size"}


def test_results() -> None:
    """A result holds exactly the outputs of the record of its kind."""
    bodies = trace.TraceLayouts(Params()).req_bodies
    assert set(bodies) == set(NAMES)
    for kind, layout in bodies.items():
        result = getattr(req_results, NAMES[kind])
        assert {f.name for f in fields(result)} == set(names(layout)) - INPUTS - GIVEN.get(kind, set()), kind


@pytest.mark.parametrize("name", ["tiny", "board", "full"])
def test_sizes(name: str) -> None:
    """Sizes mirrors the parameters of every preset."""
    params = preset(name)
    sizes = config.Sizes(**{f.name: getattr(params, f.name) for f in fields(config.Sizes)})
    assert sizes.total_evs == params.total_evs
