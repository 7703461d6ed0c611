"""Who says that a caller is who it claims to be: the chain of authenticators and its members."""
