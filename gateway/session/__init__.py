"""One client's session: subscriptions, cursors, QoS exchanges and the encoding of outgoing messages. No I/O."""
