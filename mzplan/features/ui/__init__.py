"""`mzplan ui`: pages about a project, served over HTTP to a browser.

Reads through operations and renders with render: it needs the store alone, never Spark, and changes nothing.
Starlette and uvicorn are imported only here; they come with the extra `ui`.
"""
