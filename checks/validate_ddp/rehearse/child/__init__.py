"""What goes into the rehearsed processes: this folder stands on their PYTHONPATH. Standard library only."""
