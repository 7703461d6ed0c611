"""Event rules at work, in the process that has the store: each is a consumer group whose events go to a target."""
