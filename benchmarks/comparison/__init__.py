"""`make bench`: all brokers under the same loads, in turns.

`works` defines the loads and their targets. `peers` configures and starts each broker. `rounds` runs the loads
interleaved, `idle` measures the memory of idle connections, and `report` prints the tables and `chart` draws them. A
figure (`figures`) is the median of the rounds. RabbitMQ is included if Debian's package `rabbitmq-server` is installed.
"""
