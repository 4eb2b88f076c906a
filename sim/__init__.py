"""Running things: Amaranth to Verilog, Verilator builds, cocotb regressions, reports, lint."""
