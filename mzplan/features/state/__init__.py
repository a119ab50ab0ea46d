"""`mzplan state …` and `mzplan import`: the state itself, looked at and put right by hand."""
