import typer


def group() -> typer.Typer:
    return typer.Typer()
