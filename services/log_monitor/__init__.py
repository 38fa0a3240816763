"""Follows each job's log: how far it is, and why it failed. Progress and diagnoses out, both advice."""
