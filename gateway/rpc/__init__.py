"""The gRPC front for cloud services: produce, read by offset, consume in a group.

`server` owns the listener, `service` answers the calls: `produce` is one stream of appends, `pull` reads partitions by
offset, `groups` are the cloud consumer groups (pop), `held_calls` about messages that are held, `trace` tells what
became of a message, `told` what a caller may be told, `selecting` what consumers want, `wakeups` ends long polls,
`unread` bounds what clients do not read. May import `record`, `matcher`, `store`, `gateway.auth`, `gateway.mqtt` (to
check property blocks) and the wire stubs `cloud_sdk.proto`; knows the store only as `store.api.Store`.
"""

from gateway.rpc.limits import RpcLimits
from gateway.rpc.server import RpcServer

__all__ = ["RpcLimits", "RpcServer"]
