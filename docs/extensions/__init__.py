"""What the build of the documentation derives: pages of the reference, of the commands, and of the walkthroughs."""


def put(path, text):
    """Write a file, unless it has this text already: Sphinx reads anew only what has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
