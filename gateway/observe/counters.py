"""Counters of a gateway: plain integers that the hot path increments and `/metrics` reads."""


class Counters:
    """Totals since the node started. It has fields alone: all of them are published."""

    def __init__(self) -> None:
        self.connections_opened: int = 0
        self.connections_refused: int = 0
        self.connections_closed: int = 0
        self.logins_failed: int = 0  # wrong passwords and unknown users
        self.messages_received: int = 0  # PUBLISH packets accepted from devices
        self.messages_refused: int = 0  # PUBLISH packets refused, for any reason
        self.messages_unheld: int = 0  # delayed messages refused: as many are held as may be
        self.messages_denied: int = 0  # PUBLISH packets refused by rules
        self.subscriptions_denied: int = 0  # filters refused by rules
        self.publishers_paced: int = 0  # times that a connection was not read because of its publish rate
        self.messages_sent: int = 0  # PUBLISH packets sent to devices
        self.messages_replayed: int = 0  # of those, messages older than their subscription
        self.bytes_received: int = 0
        self.bytes_sent: int = 0  # given to sockets
        self.messages_unreached: int = 0  # to inboxes of clients without a session
        self.dropped_qos0: int = 0  # the subscriber's socket was full
        self.dropped_oversized: int = 0  # larger than the client's maximum packet size
        self.dropped_expired: int = 0  # message expiry passed before delivery
        self.dropped_reclaimed: int = 0  # retention removed it before it was delivered
        self.shared_groups: int = 0  # now: shared subscriptions with members on this node
        self.shared_members: int = 0  # now
        self.shared_sent: int = 0  # messages given to members
        self.shared_returned: int = 0  # messages given back by members that left or were silent
        self.dropped_repeated: int = 0  # QoS 0 that may have been sent before the node was killed
        self.protocol_errors: int = 0
        self.takeovers: int = 0
        self.wills_sent: int = 0
        self.wills_denied: int = 0  # wills that rules, or the removal of their user, no longer allow
        self.users_full: int = 0  # CONNECTs of users with as many connections as they may have
        self.connects_too_fast: int = 0  # CONNECTs of clients or users that connect more often than they may
        self.sessions_full: int = 0  # CONNECTs that would begin a session when there are as many as may be
        self.subscriptions_full: int = 0  # filters refused because of a number that is limited (0x97)
        self.sessions_denied: int = 0  # CONNECTs with the client id of another user


def device_messages(counters: Counters) -> int:
    """The messages from and to devices."""
    return counters.messages_received + counters.messages_sent
