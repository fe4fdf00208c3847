"""Moves of offsets: plans them, applies the plans, and returns receipts."""
