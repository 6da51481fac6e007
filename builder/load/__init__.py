"""Load: read the YAML files of a project into typed values, or report all their faults at once.

`load.project` reads a whole project. Other commands read policies, contracts and host records with
single modules, so this file imports none: `pull` needs no templates and recipes.
"""
