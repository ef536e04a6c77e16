"""Statements of every kind at random, sent to several servers that write the same tables, with and without kills."""
