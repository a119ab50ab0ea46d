"""Runnable examples. Each works on one machine and is also a test. mzplan never imports this package."""
