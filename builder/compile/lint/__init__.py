"""The stage that looks at every spec before anything is built.

Our own rules read both texts of a spec; hadolint and ShellCheck read them where this machine has
them. docs/lint.md lists the rules, and the rules of others that are ignored, with reasons.
"""
