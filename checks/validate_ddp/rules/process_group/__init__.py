"""Rules for programs with process_group facts."""
