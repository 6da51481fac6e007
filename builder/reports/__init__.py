"""Reports, the catalogue, files for sites, pipelines and schemas."""
