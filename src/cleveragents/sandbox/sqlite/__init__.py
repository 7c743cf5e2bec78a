"""SQLite files: private copies, captured by the chunks that changed and applied through SQLite."""
