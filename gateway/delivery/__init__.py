"""From a commit to subscribers: routing, catching up from the store, replay and retained messages."""
