"""Names, traces, metrics and logs."""
