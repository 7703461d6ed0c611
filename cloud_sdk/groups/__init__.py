"""Members of groups: they lease messages over one stream each, and acknowledge or give back every message."""
