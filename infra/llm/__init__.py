"""Language models: a port and its adapters."""
