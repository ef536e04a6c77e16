"""Entry point: `./strata` ends here."""

from .app import main

main()
