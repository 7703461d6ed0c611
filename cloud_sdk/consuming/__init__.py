"""Readers of partitions by offset, which keep their own place. Group members, whose place the node keeps, are in
`cloud_sdk.groups`."""
