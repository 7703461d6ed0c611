"""Sockets and bytes: admission, flow control, write buffers, TLS, the PROXY protocol."""
