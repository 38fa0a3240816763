"""Run members under their supervisors: a port and its adapters."""
