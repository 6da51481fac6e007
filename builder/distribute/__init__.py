"""Publish and pull images, and write archives for sites without a network."""
