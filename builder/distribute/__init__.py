"""Publish, pull, and archives that are carried to sites without a network."""
