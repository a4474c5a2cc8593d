import typer
def group():
    return typer.Typer()
