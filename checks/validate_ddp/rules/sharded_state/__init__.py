"""Rules for programs with sharded_state facts."""
