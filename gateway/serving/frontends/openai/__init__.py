"""OpenAI's API on the port of REST: language models, and embeddings of any model that gives one vector for a text."""
