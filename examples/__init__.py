"""Things to run: each example works on one machine and is a test. Nothing in mzplan imports this package."""
