"""The `onepass` command: one file a verb."""


def main() -> int:
    """Run the command line and return its exit code: 0 fine, 1 worse than asked, 2 misuse or unobtainable."""
    from onepass.cli.app import run

    return run()
