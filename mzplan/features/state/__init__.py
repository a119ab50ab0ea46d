"""`mzplan state …` and `mzplan import`: inspect and repair the state by hand."""
