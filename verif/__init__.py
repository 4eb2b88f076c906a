"""Verification: benches, agents, lockstep, cases. Knows the model and the hardware; is run by `sim`."""
