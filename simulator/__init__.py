"""Traces, advice sources, the event loop and metrics around the dispatcher's own core: the same `step`, with a virtual clock."""
