"""Moves: targets become a plan, the plan is applied, and a receipt is left."""
