"""Exact arithmetic: rational numbers in and out, and convex hulls in the plane."""
