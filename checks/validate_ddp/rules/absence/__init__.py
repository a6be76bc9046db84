"""Rules on objects that only some ranks have."""
