"""Exact answers that tests compare with."""
