"""ingest: the HTTP API, the second door on the bus, the outbox behind both, and the read model that answers questions."""
