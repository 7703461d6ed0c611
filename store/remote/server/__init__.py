"""The store's side of its gateways."""
