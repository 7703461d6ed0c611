"""The sessions of a node: CONNECT, SUBSCRIBE, client ownership, checkpoints, wills and periodic maintenance."""
