"""Reads a job's launch command and source, never running it, and says what kind of workload it is."""
