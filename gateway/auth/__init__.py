"""Authentication and authorization: who a client is, and what it may do.

`authenticators` is the chain that knows users, `credentials` checks what they prove themselves with, `rules` says what
they may do. `authority` knows users and rules for all fronts of a process. `callers` uses all of them for calls over
gRPC and HTTP, `gateway.broker.authentication` for MQTT connections. Checks of passwords run in threads. `bans`,
`attempts` (wrong passwords) and `audit` concern all fronts alike.
"""
