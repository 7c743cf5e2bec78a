"""PostgreSQL databases: addresses without passwords, servers, clones, statement journals."""
