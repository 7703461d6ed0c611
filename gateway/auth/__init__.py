"""Who a client is, and what it may do.

`scram` and `saslprep` (proofs of passwords) and `permissions` (what rules say of a topic) do no I/O. `passwords`
checks passwords off the loop, and `authority` knows users and rules, both for all fronts of a process. `callers` puts
them together for calls over gRPC and HTTP, `gateway.broker.authentication` for MQTT connections.
"""
