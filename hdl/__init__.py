"""The hardware: Amaranth HDL of the MRC engine and NIC. Knows only the constants of :mod:`model.spec`."""
