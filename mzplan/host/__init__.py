"""What a process asks of the machine it runs on: files that people name, other processes, failpoints.

Used on both sides; may import model only.
"""
