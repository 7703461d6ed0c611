"""What leaves a store, and how it comes back: backups, restored folders, a store as it was at a moment.

`stage` is a moment of a running store that stands still; `backup` makes a data folder of it, or of one that nobody has
open, and `restore` the way back; `snapshot` answers what the store answered then. `until` is how people name a moment,
`base` finds views to begin from, `checking` reads a copy before anybody relies on it. May import the rest of `store`
but `engine`, which stages.
"""
