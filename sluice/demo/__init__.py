"""`sluice demo`: the whole path of a message in one run, with a `kill -9` in the middle and a count at the end.

Each participant has a module: `fleet` (the devices, in a process of their own), `subscriber` (the dashboard and the
offline device), `service` (the cloud service), `analytics` (the Spark job, in a process of its own) and `node` (the
node as a process). `readings` has the data, `scenario` runs the participants, `tally` counts and `summary` prints.
"""
