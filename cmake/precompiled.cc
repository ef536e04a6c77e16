// Nothing: its target exists for the precompiled headers that others reuse, see strata.cmake.
