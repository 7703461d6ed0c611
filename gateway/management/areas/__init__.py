"""The services of the management surface, a module each."""
