"""Reads the current state: positions, logs, headroom, drift and windows. This package never writes."""
