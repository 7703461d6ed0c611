"""Shared subscriptions (MQTT 5.0 section 4.8.2): each is a consumer group whose members are sessions."""
