"""One module per subcommand of `sluice`, in folders by what they are about.

`add(subparsers)` of each declares the arguments and the function to run.

A command imports what it runs inside its function. So `sluice --help` is quick, and `sluice pub` loads no store.
"""
