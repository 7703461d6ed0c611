"""The protocol of RocketMQ 5's clients (`apache.rocketmq.v2`): services that use RocketMQ's SDKs use a node as it is.

`names` are topics and groups, `messages` translates messages, `receipts` what settles them, `status` what is wrong;
`access` is who calls, and what he may; `clients` knows who is connected, `leases` are renewed for them, `sending`,
`receiving` and `settling` do what the calls of `service` ask for. Served on the port of `gateway.rpc`, whose lines of
waiting members it shares. May import `record`, `matcher`, `store`,
`gateway.mqtt` (property blocks), `gateway.rpc` and its own wire stubs; knows the store only as `store.api.Store`.
Source: docs/rocketmq.md.
"""
