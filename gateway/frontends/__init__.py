"""The edges: each frontend translates one protocol to the domain's requests and back, and knows nothing else."""
