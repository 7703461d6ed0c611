"""The database of the views, and rows that are changed since its last checkpoint."""
