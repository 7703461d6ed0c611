"""Who a client is, and what it may do.

`scram` and `saslprep` (proofs of passwords) and `permissions` (what rules say of a topic) do no I/O. `passwords`
checks passwords off the loop, `dialogue` speaks with AUTH packets, and `access` puts it together for the sessions.
"""
