"""Tests of the engine: requestor and responder together."""
