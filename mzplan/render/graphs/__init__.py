"""Graphs of resources and columns: as text, Mermaid, Graphviz DOT, JSON and SVG."""
