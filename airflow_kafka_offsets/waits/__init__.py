"""Waits: a position, a target, and whether the one has reached the other."""
