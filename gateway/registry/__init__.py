"""The registry of schemas in the log: subjects, versions and bindings, and the checks that a process makes of them."""
