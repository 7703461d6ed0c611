"""What a topic name or filter that begins with `$` means: delayed messages, inboxes, replay and browsing. No I/O."""
