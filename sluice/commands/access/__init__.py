"""Users, roles, rules and bans, and the audit log."""
