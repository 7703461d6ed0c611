"""A store in another process: `StoreServer` serves an engine, `RemoteStore` is `store.api.Store` over a socket.

A call of a gateway goes through these packages, and its answer comes back through them:

* `client`: at the gateway. `remote_store` sends appends and questions, and keeps them until they are answered.
* `transport`: `link` has the rules of what travels (numbered messages that outlive a broken stream), and `stream`
  carries a link over one `connection`. `requests` are answered beside the link.
* `wire`: the bytes. `frames` are those of a connection, `layout` those of a link's messages, `calls` those of questions
  and their answers.
* `server`: at the store. The `listener` accepts, the `store_server` knows all gateways, and one of them is `attached`.

`client` and `server` import nothing of each other. All may import what `store` may.
"""

from store.remote.client.remote_store import RemoteStore
from store.remote.config import RemoteConfig
from store.remote.server.store_server import StoreServer

__all__ = ["RemoteConfig", "RemoteStore", "StoreServer"]
