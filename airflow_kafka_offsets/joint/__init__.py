"""What needs both a checkpoint and a broker: to move them as one, and to compare them."""
