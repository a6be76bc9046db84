"""The words of `reference-trainer`, a module each: its options, and `run(words)`."""
