"""Sluice's gRPC service for cloud services: produce, read by offset, consume in a group.

`service` answers the calls. `produce` is a stream of appends, with `messages` to validate records and `producers` to
store resent records once. `pull` reads partitions by offset, with `selecting` for filters. `consume` and `group_calls`
serve consumer groups (pop), `held_calls` serves delayed messages and transactions, and `trace` finds the events of a
message. `long_polling` and `wakeups` let calls wait for messages. `authenticating`, `rights` and `visibility` check
callers, `limits`, `reply_budget` and `request_fields` check requests, and `status` has the errors. The listener is
`gateway.node.rpc_server`. The package uses the store only as `store.api.Store`.
"""
