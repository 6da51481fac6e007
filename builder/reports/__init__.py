"""Reports, the catalogue, files for sites, and pipelines."""
