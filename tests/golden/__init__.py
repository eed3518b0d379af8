"""Streams of past releases, and what they decode to. They are never made again: see `make`."""
