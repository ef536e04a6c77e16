"""SQL-level crash campaign: concurrent work, a crash or a power loss, recovery, and proof that nothing was lost."""
