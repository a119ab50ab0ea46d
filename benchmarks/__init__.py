"""Benchmarks, which are never tests with time limits: on noisy machines, only ratios within a run count."""
