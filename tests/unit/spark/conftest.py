from checkpoint_moves import begun, checkpoint, three  # noqa: F401
