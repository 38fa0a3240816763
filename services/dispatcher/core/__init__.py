"""The pure core: a pool of GPUs as a state machine. No clock, no I/O, no randomness; the simulator runs it too."""
