"""The dispatcher: one deterministic core per pool, and the leader that feeds it, persists it and tells the workers."""
