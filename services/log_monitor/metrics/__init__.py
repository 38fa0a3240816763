"""The metric tracker: what a job's log lines say about how far it is, for formats that are known and formats never seen."""
