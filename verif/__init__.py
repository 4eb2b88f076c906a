"""Verification: benches, lockstep, system tests."""
