"""The golden reference model of MRC 1.0: plain typed Python, usable without any hardware or simulator."""
