"""Files: local and remote, written atomically, locked, and JSON."""
