"""`sluice doctor`: looks for what keeps a node from running well, and says what to do about it.

Each module has checks of one kind. A check returns findings and raises nothing for what it may find.
"""
