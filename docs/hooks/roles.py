"""How do Sphinx's roles in docstrings read on a page? As the last part of the name."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:attr|class|data|func|meth):<code>(?:~|&tilde;)?(?:[\w.]*\.)?(\w+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Replace each role by the name it stands for."""
    return ROLE.sub(r"<code>\1</code>", html)
