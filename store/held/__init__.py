"""Messages that are delayed or belong to an open transaction: stored, and in no queue yet."""
