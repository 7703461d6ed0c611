"""Files in folders that the worker allows: JSON lines, CSV, text."""
