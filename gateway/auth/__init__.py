"""Authentication and authorization: who a client is, and what it may do.

`scram` and `saslprep` (proofs of passwords) and `permissions` (rules about topics) do no I/O. `passwords` checks
passwords in threads. `authority` knows users and rules for all fronts of a process. `callers` uses all of them for
calls over gRPC and HTTP, `gateway.broker.authentication` for MQTT connections.
"""
