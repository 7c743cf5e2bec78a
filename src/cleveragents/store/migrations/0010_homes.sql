-- Which home the holder of a plan works in: two on one host that share a store are two machines.

ALTER TABLE leases ADD COLUMN home TEXT NOT NULL DEFAULT '';
