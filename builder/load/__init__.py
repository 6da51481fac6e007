"""Load: the YAML files of a project become typed values, or one list of every fault in them.

`project` reads a whole one. Its parts also read policies, contracts and records of hosts, so this
imports none of them: `pull` has no use for templates and recipes.
"""
