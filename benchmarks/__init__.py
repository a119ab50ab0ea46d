"""Measurements, never timed tests: machines are noisy, so what counts are ratios from one run."""
