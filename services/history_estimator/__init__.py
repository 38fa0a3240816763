"""Remembers finished jobs and estimates how long a new one will run; says "unknown" instead of guessing."""
