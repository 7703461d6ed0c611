"""Apache Kafka, in both directions."""
