"""Run events for an OpenLineage server: the lineage of each query, and the start and end of its runs.

`watch` finds in the runner's rounds which runs start, continue and end. It sends events from a queue, on a
thread of its own. `server` makes and posts the events. No query and no round waits for an event.
"""
