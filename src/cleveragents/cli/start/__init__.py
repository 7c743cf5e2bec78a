"""Commands to start with: first files, problems in a plan file, schemas."""
