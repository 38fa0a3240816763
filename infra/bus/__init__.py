"""The event bus: a port and its adapters (memory, SQLite, Kafka)."""
