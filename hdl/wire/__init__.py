"""Frames to descriptors and back: parser, builder, ICRC."""
