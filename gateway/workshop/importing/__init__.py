"""Import of models that were laid out for other servers and tools: recognise a source, read it, write releases."""
