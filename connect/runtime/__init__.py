"""The worker of Connect: it shares connectors with other workers, and runs tasks."""
