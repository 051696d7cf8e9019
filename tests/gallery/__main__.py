"""Writes ``docs/errors.md``, or with ``--check`` compares it."""

import sys

from tests.gallery.page import PAGE, page


def main() -> int:
    """The exit code: 1 if the page is stale and was only to be checked."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print("docs/errors.md is not what miles says. Run: python -m tests.gallery", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
