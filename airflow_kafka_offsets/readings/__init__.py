"""What is so now: positions, logs, headroom, drift and windows. It reads, and writes nothing."""
