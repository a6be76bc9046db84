"""Rules on state that lies in shards on all ranks."""
