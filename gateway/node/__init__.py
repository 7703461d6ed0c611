"""Processes: a node that is all in one, a store, a gateway, and the supervisor that starts several."""
