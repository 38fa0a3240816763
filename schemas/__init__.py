"""The words that all parts share: events, states, reasons, topics, ids and the wire codec."""
