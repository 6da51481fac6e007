"""Lint every spec before anything is built.

Our own rules check both texts of a spec; hadolint and ShellCheck check them if this machine has
them. docs/lint.md lists our rules and the ignored rules of other linters, with reasons.
"""
