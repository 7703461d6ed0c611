"""InfluxDB, and what else takes its line protocol."""
