"""`mzplan history`: who committed what, when and why."""
