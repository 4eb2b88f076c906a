"""Tests of the host side."""
