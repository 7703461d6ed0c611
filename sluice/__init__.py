"""The command `sluice` and its demo. May import every other package; no other package imports it."""
