"""Who has to hear of a commit: topic events to gateway nodes. May import `record`, `matcher`, `store`."""
