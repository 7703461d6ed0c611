"""What commands share on the command line: declaring arguments, reading passwords, formatting times and records."""
