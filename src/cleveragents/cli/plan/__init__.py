"""`agents plan ...`: a module per topic; each parses, calls `PlanHandle` and renders."""
