"""Sockets and bytes: binding, TLS, the PROXY protocol, admission, flow control and the write buffer."""
