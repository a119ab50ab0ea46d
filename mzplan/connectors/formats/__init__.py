"""What records hold: formats and envelopes → columns, malformed records kept aside, schemas of a registry.

May not know from which server a record comes.
"""
