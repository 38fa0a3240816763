"""Bundles and log chunks by content hash or address: a port and its adapters."""
