"""RabbitMQ by AMQP 0-9-1, in both directions."""
