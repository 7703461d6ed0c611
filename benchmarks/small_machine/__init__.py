"""What a node carries on a machine of the size of a Raspberry Pi, with a slow disk (`slow_disk`)."""
