"""A generation of a source that begins with the rows of the former one (`replace: from-collection`)."""
