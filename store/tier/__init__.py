"""Old segments of the log in an object store: the objects, their format, and reads of them."""
