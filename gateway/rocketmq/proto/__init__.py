"""The wire of RocketMQ's clients, generated from `rocketmq.proto` by `make proto`."""
