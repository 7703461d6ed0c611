"""The gateways of a store: which processes take connections for it, and which of them has which client."""
