"""``dnnc zoo``: models that come with dnnc, without any download."""

from __future__ import annotations

import typer

from dnnc.cli import options as opt

app = typer.Typer(help="Models that come with dnnc.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(json: opt.JsonOption = False) -> None:
    """List the models and their options."""

    raise NotImplementedError
