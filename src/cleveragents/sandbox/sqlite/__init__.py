"""SQLite files: private copies, captured in changed chunks and applied through SQLite."""
