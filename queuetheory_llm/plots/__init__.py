"""Figures, drawn with matplotlib from plain results."""
