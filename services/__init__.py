"""The six services; none imports another, all share the ports of infra and the words of schemas."""
