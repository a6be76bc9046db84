"""Launch files: shell, batch scripts, YAML, Dockerfiles, commands in Python; as facts that rules ask about."""
