"""Block tests of the frame path."""
