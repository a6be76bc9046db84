"""Rules on results of collectives that a gradient should flow through."""
