"""Topics, messages and groups: publish, read, find, and look after them."""
