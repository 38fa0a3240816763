"""Embeddings of texts: the port, hashed features, Ollama's endpoint; and the search of the nearest vectors."""
