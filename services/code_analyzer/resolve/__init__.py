"""The static resolution of a job: shell, launchers, configuration files and Python followed from value to value. Pure; nothing is run."""
