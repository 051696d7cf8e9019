"""Writes the pages of the recipes, or with ``--check`` compares them."""

import sys

from tests.recipes.page import PAGES, RECIPES, page


def main() -> int:
    """The exit code: 1 if a page is stale and was only to be checked."""
    stale = [name for name in RECIPES if not (PAGES / f"{name}.md").exists() or (PAGES / f"{name}.md").read_text() != page(name)]
    if "--check" in sys.argv:
        if stale:
            print(f"not what the presets say: {', '.join(stale)}. Run: python -m tests.recipes", file=sys.stderr)
        return int(bool(stale))
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (PAGES / f"{name}.md").write_text(page(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
