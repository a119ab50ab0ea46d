"""Rendering: plans, graphs and diagnostics as text, JSON and drawings.

Takes finished data and returns text or plain values. Calculates nothing about the plan, and prints nothing.
"""
