"""Whom the gateways of a node of a cluster may serve, as the node's own store tells them.

A request is the state that the gateway knows, or nothing. It is answered as soon as there is another one.
"""

import msgspec


class ServiceState(msgspec.Struct, frozen=True, array_like=True):
    """Whom gateways serve: all, unless one of these says otherwise."""

    standby: str = ""  # why they serve no devices, and only reads: another site has the log; "": they may serve all
    drain_rate: int = 0  # connections a second that each gateway closes, to send clients to other nodes; 0: none
    services_s: int = 0  # after which a drained node serves no cloud services either
