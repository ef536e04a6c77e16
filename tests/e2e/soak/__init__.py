"""The server under full load for long: memory, versions and undo stay bounded, tables and connections come and go."""
