"""MQTT 3.1.1 and 5.0 without I/O, on the server's side: bytes in, packets out; packets in, bytes out.

`decode` reads what clients send, `encode` writes what the server sends. Both versions of the protocol are one
implementation: the version is an argument. Clause names such as MQTT-3.3.1-4 are those of the MQTT 5.0
standard. Imports only `matcher`; all modules are compiled with mypyc, and run uncompiled too.
"""
