"""Waits for a position to reach a target."""
