"""Sluice's gRPC service for cloud services: produce, read by offset, consume in a group.

A call goes from the listener (`gateway.node.rpc_server`) through these modules and packages to the store, which is used
only as `store.api.Store`:

* `access`: `authenticating` says who calls, `rights` what the call needs, `visibility` what the caller may read.
* `service`: checks the request (`limits`, `request_fields`, `reply_budget`) and hands the call on.
* `producing`: a stream of appends. `messages` validates records, and `producers` stores resent records once.
* `consuming`: `pull` reads partitions by offset, with `selecting` for filters. `trace` finds the events of a message.
* `groups`: `consume` and `group_calls` serve members of consumer groups (pop), who wait in `long_polling`.
* `held_calls` serves delayed messages and transactions, `bucket_calls` key-value entries.

`wakeups` wakes calls that wait for messages, `loop_turns` bounds the time of those that read old ones, and `status` has
the errors.
"""
