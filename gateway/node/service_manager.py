"""What a node tells systemd about itself (`Type=notify`), as sd_notify(3) has it."""

import logging
import os
import socket
from typing import Final

log = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def tell_service_manager(state: str) -> None:
    """Send a state. Does nothing if the process was not started by a manager that listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(state.encode(), address)
    except OSError as error:
        log.warning("systemd was not told %s: %s", state, error.strerror)
