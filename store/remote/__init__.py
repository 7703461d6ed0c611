"""A store in another process: `StoreServer` serves an engine, `RemoteStore` is `store.api.Store` over a socket.

`link` has the rules of what travels (numbered messages that outlive a broken stream), and `stream` carries a link over
one `connection`. `frames` and `wire` have the layout. `requests` are answered beside the link. `calls` has the
questions with their answers, `events` the commits. One gateway is `attached` in the server. May import what `store`
may.
"""

from store.remote.client import RemoteStore
from store.remote.config import RemoteConfig
from store.remote.server import StoreServer

__all__ = ["RemoteConfig", "RemoteStore", "StoreServer"]
