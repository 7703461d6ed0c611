"""The administration socket, and the queries that it answers."""
