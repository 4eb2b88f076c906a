"""The responder: one of the two owners of protocol state."""
