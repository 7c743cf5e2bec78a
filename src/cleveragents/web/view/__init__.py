"""What the page shows, computed from the store: rows, folds, text and small drawings."""
