"""The stage that looks at every spec before anything is built.

Our own rules read both texts of a spec; hadolint and ShellCheck read them where this machine has
them. docs/lint.md lists the rules, and the rules of others that are ignored, with reasons.
"""

from __future__ import annotations

from builder.compile.lint.findings import ERROR, RULES, WARNING, LintFinding, LintReport
from builder.compile.lint.linters import IGNORED
from builder.compile.lint.run import lint

__all__ = ["ERROR", "IGNORED", "RULES", "WARNING", "LintFinding", "LintReport", "lint"]
