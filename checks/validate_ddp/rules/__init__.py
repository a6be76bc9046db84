"""The rules: one file each, in the folder named after the kind of fact that makes it worth loading."""
