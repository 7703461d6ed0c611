"""The command `sluice`: serve, demo, pub, sub. The roof of the house: may import everything, imported by nothing."""
