"""Publication: keys, roles, drafts, signatures, releases, assignments, and the repository that devices read."""
