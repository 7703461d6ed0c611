"""The protocol of RocketMQ 5's clients (`apache.rocketmq.v2`): services can use a node through RocketMQ's SDKs.

`service` answers the calls, with `send_calls`, `receive_calls` and `settle_calls`. `names` maps topics and groups,
`messages` translates messages, `receipts` has the receipt handles, and `status` has the errors. `access` checks the
caller. `clients` has the connected clients, and `lease_renewal` renews the leases of push consumers. The service shares
the port of `gateway.rpc` and its long polling. The package may import `record`, `matcher`, `store`, `gateway.mqtt`
(property blocks), `gateway.rpc` and its own wire stubs. It uses the store only as `store.api.Store`.
Source: docs/rocketmq.md.
"""
