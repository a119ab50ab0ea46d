"""Rendering: plans, graphs and diagnostics as text, JSON and drawings.

This package takes finished data and returns text or plain values. It computes nothing about the plan, and
prints nothing.
"""
