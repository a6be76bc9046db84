"""What is observed in a rank; one concern a file, each patched in on its own, none able to change the run."""
