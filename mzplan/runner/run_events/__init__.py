"""Run events for an OpenLineage server: what each query reads and writes, and how its runs begin and end.

`watch` sees runs begin, go on and end, in the runner's rounds, and sends that from a queue on a thread of its
own; `server` makes and posts the events. Nothing waits for any of this, and no query knows of it.
"""
