"""One file per subcommand of `sluice`. Each has `add(subparsers)`; what it runs takes the parsed arguments.

Imports of a command's machinery stay inside its run function, so that `sluice --help` is quick and
`sluice pub` starts without loading a store.
"""
