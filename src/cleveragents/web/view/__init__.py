"""What the page shows, worked out from the store: rows, folds, words and small drawings."""
