"""The local source: each append is one durable step. And the files of rows that `mzplan append` takes."""
