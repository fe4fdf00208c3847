"""Spark Structured Streaming checkpoints, read through fsspec only."""
