"""Public: simulated clock and disk, seeded workload, reference model, history checker."""
