"""What a gateway counts. Plain integers: the hot path adds, `/metrics` reads."""


class Counters:
    """Totals since the node started."""

    def __init__(self) -> None:
        self.connections_opened: int = 0
        self.connections_refused: int = 0
        self.connections_closed: int = 0
        self.logins_failed: int = 0  # wrong passwords, and users that there are not
        self.messages_received: int = 0  # PUBLISH packets accepted from devices
        self.messages_refused: int = 0  # PUBLISH packets not taken: to the node's own topics, or of a wrong format
        self.messages_unheld: int = 0  # PUBLISH packets for later, when as many waited as may
        self.messages_denied: int = 0  # PUBLISH packets to topics that the client may not publish to
        self.subscriptions_denied: int = 0  # filters that the client may not subscribe to
        self.publishers_paced: int = 0  # times that a connection was not read because it published too fast
        self.messages_sent: int = 0  # PUBLISH packets handed to devices
        self.messages_replayed: int = 0  # of those, PUBLISH packets that were older than their subscription
        self.bytes_received: int = 0
        self.bytes_sent: int = 0  # handed to sockets
        self.messages_unreached: int = 0  # to inboxes of clients without a session
        self.dropped_qos0: int = 0  # the subscriber's socket was full
        self.dropped_oversized: int = 0  # larger than the client's maximum packet size
        self.dropped_expired: int = 0  # message expiry passed before delivery
        self.dropped_reclaimed: int = 0  # gone from the log before the session came
        self.shared_groups: int = 0  # now: shared subscriptions with members here
        self.shared_members: int = 0  # now
        self.shared_sent: int = 0  # messages given to members
        self.shared_returned: int = 0  # messages taken back from members that were gone or silent, for others
        self.dropped_repeated: int = 0  # QoS 0, and may have been sent before the node died
        self.protocol_errors: int = 0
        self.takeovers: int = 0
        self.wills_sent: int = 0
        self.wills_denied: int = 0  # rules, or the removal of a user, took the right to send them
        self.sessions_denied: int = 0  # CONNECTs with the client id of another user's session, or with nobody's own
