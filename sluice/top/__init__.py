"""`sluice top`: what a node does now, on a terminal."""
