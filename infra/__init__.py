"""Ports and their adapters: the only code that talks to Kafka, stores, models, devices and processes."""
