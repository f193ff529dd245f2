"""The commands that are more than a call of the engine."""
