"""Generated Verilog: repeatable, free of machine paths, judged by lint and Yosys, found again in the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim import tools
from sim.build import build
from sim.emit import fresh_verilog, to_verilog
from sim.verilog import check_with_yosys, emit_twice, lint
from verif.bench import Bench
from verif.smoke import Counter, counter_bench


def test_made_twice_clean_and_without_paths(tmp_path: Path) -> None:
    output = tmp_path / "counter.v"
    emit_twice("verif.smoke:counter", "tiny", "counter", output)
    text = output.read_text()
    assert "module counter(" in text
    assert str(tools.ROOT) not in text and ".py" not in text and "src =" not in text
    lint(output, "counter")
    check_with_yosys(output, "counter")
    assert to_verilog(Counter(), "counter") == fresh_verilog(Counter(), "counter") == text


def test_latch_is_found(tmp_path: Path) -> None:
    """The check must be able to fail."""
    path = tmp_path / "latch.v"
    path.write_text("module latch(input e, input d, output reg q);\n  always @* if (e) q = d;\nendmodule\n")
    with pytest.raises(tools.ToolError, match="latch"):
        check_with_yosys(path, "latch")


@pytest.mark.parametrize("body, rule", [
    ("assign q = a;", "WIDTHTRUNC"),
    ("reg [3:0] r; always @* if (a[0]) r = a[7:4]; assign q = r;", "LATCH"),
    ("wire [3:0] w; assign q = w;", "UNDRIVEN"),
    ("assign q = a[3:0]; assign q = a[7:4];", "MULTIDRIVEN"),
    ("wire w; assign w = ~(w & a[0]); assign q = {3'd0, w};", "UNOPTFLAT"),
])
def test_lint_still_finds(tmp_path: Path, body: str, rule: str) -> None:
    """What the waivers leave on: lost bits, latches, floating and doubly driven nets, loops."""
    path = tmp_path / "wrong.v"
    path.write_text(f"module wrong(input [7:0] a, output [3:0] q);\n  {body}\nendmodule\n")
    with pytest.raises(tools.ToolError, match=rule):
        lint(path, "wrong")


def test_unknown_preset_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "sim.verilog"], cwd=tools.ROOT, capture_output=True, text=True,
                          env=dict(os.environ) | {"PRESET": "no_such_preset"}, check=False)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("make verilog: unknown preset 'no_such_preset'")


def test_build_is_found_again_and_changes_are_seen(tmp_path: Path) -> None:
    """Same contents: same folder. A changed header, source or option: another one."""
    source, header = tmp_path / "extra.sv", tmp_path / "value.svh"
    source.write_text('`include "value.svh"\nmodule extra(output [7:0] q);\n  assign q = `VALUE;\nendmodule\n')
    header.write_text("`define VALUE 8'd1\n")
    bench = Bench(name="extra", top="extra", sources=(source,), includes=(tmp_path,))
    first = build(bench).folder
    assert build(bench).folder == first
    header.write_text("`define VALUE 8'd2\n")
    assert build(bench).folder != first


def test_dpi_function_is_linked_in(tmp_path: Path, simulate) -> None:  # type: ignore[no-untyped-def]
    """C++ beside the hardware: an imported function gives the enable of the counter's bench."""
    cpp, top = tmp_path / "enable.cpp", tmp_path / "dpi_top.sv"
    cpp.write_text('#include "svdpi.h"\nextern "C" int enable_now(int wanted) { return wanted & 1; }\n')
    top.write_text(
        'import "DPI-C" function int enable_now(input int wanted);\n'
        "module dpi_top(input clk, input rst, input enable, output logic [15:0] count);\n"
        "  logic on;\n  always_comb on = enable_now({31'd0, enable}) != 0;\n"
        "  counter inner(.clk(clk), .rst(rst), .enable(on), .count(count));\nendmodule\n")
    bench = Bench(name="dpi_top", top="dpi_top", components={"counter": Counter()}, sources=(top,), cpp=(cpp,))
    simulate(bench, "verif.bench_smoke", "counts", parameters={"clocks": 50})


def test_missing_source_and_syntax_error_are_clear(tmp_path: Path) -> None:
    with pytest.raises(tools.ToolError, match=r"absent\.sv not found"):
        build(Bench(name="x", top="x", sources=(tmp_path / "absent.sv",)))
    wrong = tmp_path / "wrong.sv"
    wrong.write_text("module wrong(;\nendmodule\n")
    with pytest.raises(tools.ToolError, match="bench wrong does not build"):
        build(Bench(name="wrong", top="wrong", sources=(wrong,)))


def test_internal_signals_only_when_asked_for() -> None:
    """The default keeps Verilator free to optimise."""
    assert counter_bench("tiny").visible == "top"
