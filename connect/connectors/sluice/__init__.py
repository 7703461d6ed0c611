"""Other clusters of Sluice."""
