"""Consumer groups in pop mode: leasing messages of queues to members, and settling them."""
