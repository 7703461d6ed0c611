"""Administration: the socket in the data folder, and the questions about sessions, users and rules it answers."""
