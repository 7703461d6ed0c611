"""The same work on Sluice and its peers, side by side in one run: `make bench`.

`works` says what is measured and what is wanted of it, `peers` how each broker is started and `brokers` what it has
cost, `load/mqttload.c` makes the load, `rounds` runs the works interleaved, `idle` measures what connections cost that
do nothing, `report` prints. A figure (`figures`) is the median of the rounds. nats-server and RabbitMQ take part where
Debian's packages `nats-server` and `rabbitmq-server` are installed.
"""
