"""Benchmarks of cloud services: the SDK, and RocketMQ's client (`rocketmq`) against the same node."""
