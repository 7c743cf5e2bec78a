"""Many machines: an existing queue hands plans to workers; the store's lease decides who works."""
