"""What the checkpoints are: one folder for each model family."""
