"""`mzplan preview`: what an edited query gives over the rows that its inputs hold."""
