"""Benchmarks of Sluice and its peers under the same loads, side by side in one run: `make bench`.

`works` defines the loads and their targets. `peers` configures and starts each broker, and `brokers` measures what it
uses. `load/mqttload.c` generates the load, `rounds` runs the loads interleaved, `idle` measures the memory of idle
connections, and `report` prints the tables. A figure (`figures`) is the median of the rounds. RabbitMQ is included if
Debian's package `rabbitmq-server` is installed.
"""
