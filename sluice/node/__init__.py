"""How commands reach a node: over its administration socket, over gRPC, or through its data folder when it is down."""
