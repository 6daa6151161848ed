"""``dnnc zoo``: models that come with dnnc, without any download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli.console import progress, put, put_json, talk
from dnnc.cli.faults import WeightsOnlyDeclared
from dnnc.cli.options import shared as opt
from dnnc.cli.panels import PanelGroup
from ir.core.diagnostics import UsageError

app = typer.Typer(cls=PanelGroup, help="Models that come with dnnc.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(json: opt.JsonOption = False) -> None:
    """List the models and their options; use one as zoo:NAME,option=value."""
    from dnnc.zoo import entries

    if json:
        listed = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "options": [
                    {
                        "name": o.name,
                        "default": o.default,
                        "help": o.help,
                        **({"choices": list(o.choices)} if o.choices else {}),
                    }
                    for o in entry.options
                ],
            }
            for entry in entries()
        ]
        put_json("zoo", {"models": listed})
        return
    for entry in entries():
        put(f"zoo:{entry.name}\n  {entry.summary}")
        for option in entry.options:
            put(f"    {option.name}={option.default}".ljust(24) + option.help)


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="NAME", help="As zoo:NAME,option=value.", autocompletion=opt.complete_zoo)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.onnx", help="File to write; its weights go beside it.")],
    quiet: opt.QuietOption = False,
) -> None:
    """Write a model as an ONNX file, its weights in FILE.onnx.data beside it."""
    from dnnc.engines.onnxruntime.write import write_model
    from dnnc.zoo import build_model

    with progress(not quiet) as report:
        report("export", None)
        built = build_model(model)
        if built.declared:
            size = f"{built.weight_bytes / 2**30:,.1f} GiB"
            raise UsageError(WeightsOnlyDeclared(size), where=built.spec)
        written = write_model(built.module, Path(), out, progress=report)
    talk(f"wrote {' and '.join(map(str, written))}", quiet)
