"""A primary and a replica under load, killed in turns; at the end their tables are equal."""
