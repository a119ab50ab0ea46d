"""`mzplan test`: runs the tests of a project on local Spark."""
