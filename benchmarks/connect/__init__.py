"""What connectors cost: messages a second, and CPU time of a message, beside the plain client of the other system.

The other system runs in a process of its own. CPU time is that of this process: of the plain client, of a task alone,
of a worker with its client of a node, or of a node whose rule sends webhooks.
"""
