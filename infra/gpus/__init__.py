"""The GPUs of a node: a port and its adapters (declared, NVML, scripted)."""
