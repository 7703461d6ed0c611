"""What somebody may do: rules and their text, roles, the sources that rules name, and the permissions that follow."""
