"""Run events for an OpenLineage server: what each query reads and writes, and how its runs begin and end.

`watch` sees runs begin, go on and end, in the runner's rounds; it only puts that into a queue. `sender`
empties it on a thread of its own: `message` makes the event, `server` posts it. Nothing waits for any of
this, and no query knows of it. `reporting` puts them together for one runner.
"""
