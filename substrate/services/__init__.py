"""Use cases: one permission check and one transaction each."""
