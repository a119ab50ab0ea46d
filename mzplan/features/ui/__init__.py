"""`mzplan ui`: pages about a project, served over HTTP to a browser.

It reads through operations and renders with render. It needs only the store, never Spark, and changes
nothing. Starlette and uvicorn, from the extra `ui`, are imported only here.
"""
