"""Events: messages as CloudEvents, and what event rules make of one. No I/O: an event in, a request out."""
