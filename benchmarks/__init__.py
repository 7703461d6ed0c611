"""The same work on Sluice and its peers, side by side in one run: `make bench`.

`works` says what is measured, `brokers` starts what is measured, `load/mqttload.c` makes the load, `rounds`
runs them interleaved, `report` prints. A figure is the median of the rounds.
"""
