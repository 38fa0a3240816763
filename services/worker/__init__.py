"""The agent of one GPU node: starts run members, watches them, and tells the full truth about the node."""
