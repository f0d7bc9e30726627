"""The skill substrate: which skills exist, which an agent may use, and why."""
