"""The `./strata` command: set-up, build, servers, demo, tests. One module per command group."""
