"""`mzplan snapshot`: a collection as of a step, in files or on the terminal."""
