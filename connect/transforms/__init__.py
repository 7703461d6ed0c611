"""The single-message transforms of Kafka Connect, with Kafka's names and settings, and the predicates for them.

They change the value of a record, its topic, its key and its headers. A key is a text here, so Kafka's variants `$Key`
are missing; `ValueToKey` sets a key.
"""
