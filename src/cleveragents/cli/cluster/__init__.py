"""Commands for a store that several machines share."""
