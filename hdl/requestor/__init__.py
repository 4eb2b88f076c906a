"""The requestor: one of the two owners of protocol state."""
