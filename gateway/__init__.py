"""The fronts of a node: MQTT for devices, gRPC for cloud services, HTTP for people.

`mqtt` is the protocol without I/O; `node` composes store, notify and the listeners. May import `record`,
`matcher`, `store`, `notify`, and of `cloud_sdk` only the generated wire stubs (`cloud_sdk.proto`).
"""
