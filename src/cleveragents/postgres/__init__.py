"""PostgreSQL: addresses without passwords, servers, what a database holds, and scripts."""
