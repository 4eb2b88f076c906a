"""Copies of the configuration that the frame path keeps."""

from __future__ import annotations

from amaranth.lib import data

from hdl.layouts import QP_CONFIG
from hdl.params import Params


def cfg_write(params: Params) -> data.StructLayout:
    """A write to the copies of a QP's configuration."""
    return data.StructLayout({"valid": 1, "qp": params.qp_bits, "data": QP_CONFIG})
