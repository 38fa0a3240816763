"""Starts the real servers (Kafka, MongoDB wire, Ollama, OTel Collector with Zipkin) without Docker, for tests and development.

Standard library only: it runs before anything is installed. What ships imports none of it.
"""
