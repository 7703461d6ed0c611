"""Finding damage in a log, and marking it so that the rest can be served."""
