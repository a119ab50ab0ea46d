"""Run events for an OpenLineage server: the lineage of each query, and the start and end of its runs.

`watch` notices in the runner's rounds which runs start, continue and end. It queues events, and sends them on
its own thread. `server` makes and posts the events. No query and no round waits for an event.
"""
