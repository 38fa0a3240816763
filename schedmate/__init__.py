"""SchedMate: GPU-cluster scheduling that understands the jobs it schedules."""

__version__ = "0.1.0"
