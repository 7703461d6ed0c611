"""Topics and filters that begin with `$`: delayed messages, inboxes, replay and browsing. No I/O but the store's."""
