"""Listeners: TCP, TLS, Unix sockets and WebSocket, and the timer that watches the connections they accept."""
