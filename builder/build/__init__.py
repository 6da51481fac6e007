"""Engines, bases and native tools: a spec becomes artifacts."""
