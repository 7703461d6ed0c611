"""Sluice's gRPC service for cloud services: produce, read by offset, consume in a group.

`service` answers the calls: `produce` is one stream of appends, `pull` reads partitions by offset, `groups` are the
cloud consumer groups (pop), `held_calls` about messages that are held, `trace` tells what became of a message, `told`
what a caller may be told, `selecting` what consumers want, `wakeups` ends long polls, `unread` bounds what clients do
not read. The listener is `gateway.node.rpc_server`. Knows the store only as `store.api.Store`.
"""
