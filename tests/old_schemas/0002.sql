-- Added to 0001.
CREATE INDEX plans_by_state ON plans (state);
