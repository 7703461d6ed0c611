"""Commits on their way to gateways in processes of their own. May import `record`, `matcher`, `store`."""
