"""The differential runner: the same random SQL on STRATA and on InnoDB, every answer compared."""
