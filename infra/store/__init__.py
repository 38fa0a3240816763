"""The document store: a port and its adapters (memory, SQLite, MongoDB)."""
