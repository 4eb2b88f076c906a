"""The verification environment: RTL in lockstep with the golden model."""
