"""What transactions may see of each other: the anomaly matrix and the history checker (README.md)."""
