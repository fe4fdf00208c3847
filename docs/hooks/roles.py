"""Shows Sphinx's roles in docstrings as names, and the files of examples as titles."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:attr|class|data|func|meth):<code>(?:~|&tilde;)?(?:[\w.]*\.)?(\w+)</code>")
EXAMPLE = re.compile(r"<!-- (dags_examples/[\w./]+)(?::\w+)? -->\n```(\w+)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Give each example the name of its file as its title."""
    return EXAMPLE.sub(r'```\2 title="\1"', markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Replace each role by the name it stands for."""
    return ROLE.sub(r"<code>\1</code>", html)
