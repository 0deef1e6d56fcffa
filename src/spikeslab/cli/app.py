"""The commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import __version__
from ..experiments import EXPERIMENTS, Plan
from ..image_files import read_mask
from ..images import denoise as denoise_image
from ..images import inpaint as inpaint_image
from ..images import noise_level
from ..separation import load_model
from ..signals import clipping, read
from . import pictures, reproduction, summary
from .demo import run_demo
from .folder import output_folder
from .progress import separate_with_progress
from .results import default_folder, write_separation, write_sources

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT", show_default=False, help="A .wav, .flac, .csv, .npy or .mat file."
    ),
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", show_default=False, help="The model.npz of a separation.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        show_default=False,
        help="Folder for the results; if not given, INPUT's name with -sources.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the results of an earlier run in the folder.")
]
Image = Annotated[
    Path, typer.Argument(metavar="IN", show_default=False, help="A .png, .jpg or .tif picture.")
]
ImageOutput = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="OUT",
        show_default=False,
        help="The restored picture; its suffix says the format.",
    ),
]
Clean = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="The true picture: prints the PSNR, and draws before and after beside it in "
        "OUT-comparison.png.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="The same seed gives the same result.")]
ForceImage = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spikeslab {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def spikeslab(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Separate mixed signals into their sources, by exact maximum likelihood.

    [bold]spikeslab demo[/] shows it on four voices.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def separate(
    source: Input,
    n_sources: Annotated[
        str, typer.Option("-n", "--sources", metavar="N|auto", help="Number of sources.")
    ] = "auto",
    output: Output = None,
    method: Annotated[
        Literal["auto", "noise_free", "orthogonal", "noisy"],
        typer.Option(
            metavar="KIND",
            help="Of model: noise_free, orthogonal, noisy, or auto, which tries several and "
            "compares their likelihoods.",
        ),
    ] = "auto",
    select: Annotated[
        Literal["likelihood", "orthogonality"],
        typer.Option(
            metavar="RULE", help="Which run to choose: the best by likelihood or by orthogonality."
        ),
    ] = "likelihood",
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="The same seed gives the same result.")
    ] = 0,
    jobs: Annotated[
        int, typer.Option(min=-1, metavar="N", help="Threads; -1 is all processors.")
    ] = 1,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Keep what is found in FILE; after a crash the same command goes on from there.",
        ),
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Separate a recording of several sensors into its sources.

    Writes one file per source in INPUT's format and rate, [bold]model.npz[/] for
    [bold]spikeslab apply[/], and [bold]report.html[/] with what was found and how far to trust it.
    Audio is scaled to a common peak: the scale of a source cannot be known.

    [dim]spikeslab separate meeting.wav[/]
    [dim]spikeslab separate sensors.csv -n 3 --method noisy -o results[/]
    [dim]spikeslab separate meeting.wav --json | jq .sources[/]
    """
    wanted = _number_of_sources(n_sources)
    signals = read(source)
    warnings = clipping(signals)
    for warning in warnings:
        typer.echo(f"Warning: {warning}", err=True)
    target = output or default_folder(source)
    with output_folder(target, force=force) as folder:
        separation = separate_with_progress(
            signals.data,
            wanted,
            method=method,
            select=select,
            n_jobs=jobs,
            random_state=seed,
            checkpoint=checkpoint,
        )
        files = write_separation(folder, separation, signals, source.name, report=report)
    if as_json:
        summary.print_json(summary.of_separation(separation, source, target, files, warnings))
    else:
        summary.print_separation(separation, signals.rate)
        summary.print_files(target, files)


@app.command()
def apply(
    model: Model,
    source: Input,
    output: Output = None,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Unmix further data of the same sensors with a model that was found before.

    Writes one file per source in INPUT's format and rate.

    [dim]spikeslab apply meeting-sources/model.npz next-meeting.wav[/]
    """
    fitted = load_model(model)
    signals = read(source)
    n_channels, wanted = signals.data.shape[1], len(fitted.mean_)
    if n_channels != wanted:
        raise ValueError(
            f"the model {model} unmixes {wanted} channels, but {source} has {n_channels}"
        )
    target = output or default_folder(source)
    with output_folder(target, force=force) as folder:
        files = write_sources(folder, fitted.transform(signals.data), signals)
    if as_json:
        summary.print_json(
            {"model": str(model), "input": str(source), "output": str(target), "files": files}
        )
    else:
        summary.print_files(target, files)


@app.command()
def info(model: Model, as_json: AsJson = False) -> None:
    """Say what a model file holds.

    [dim]spikeslab info meeting-sources/model.npz[/]
    """
    record = summary.of_model(load_model(model))
    if as_json:
        summary.print_json(record)
    else:
        summary.print_model(record)


@app.command()
def denoise(
    source: Image,
    output: ImageOutput = None,
    sigma: Annotated[
        str,
        typer.Option(
            metavar="S|auto",
            help="Standard deviation of the noise, in the levels of the file (0 to 255 with 8 "
            "bits); auto estimates it.",
        ),
    ] = "auto",
    fast: Annotated[
        bool, typer.Option("--fast", help="Several times faster, a little less accurate.")
    ] = False,
    clean: Clean = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    force: ForceImage = False,
) -> None:
    """Remove noise from a picture, by what is learned from its own patches.

    Grey or colour, .png, .jpg or .tif; 16 bits if grey. The depth of IN is kept.

    [dim]spikeslab denoise night.png -o better.png[/]
    [dim]spikeslab denoise noisy.png -o out.png --sigma 25 --clean truth.png[/]
    """
    given = _noise(sigma)
    job = pictures.prepare(source, output, clean, "denoised", force=force)
    pixels = job.picture.pixels
    level = noise_level(pixels) if given is None else given
    pictures.run(
        job,
        lambda callback: denoise_image(
            pixels,
            "auto" if given is None else given,
            fast=fast,
            random_state=seed,
            callback=callback,
        ),
        pixels,
        {"sigma": level},
        as_json=as_json,
    )


@app.command()
def inpaint(
    source: Image,
    mask: Annotated[
        Path,
        typer.Option(
            metavar="MASK", show_default=False, help="A picture of IN's size, white where IN lacks."
        ),
    ],
    output: ImageOutput = None,
    clean: Clean = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    force: ForceImage = False,
) -> None:
    """Fill in the missing pixels of a picture, by what is learned from its own patches.

    [dim]spikeslab inpaint torn.png --mask holes.png -o whole.png[/]
    """
    job = pictures.prepare(source, output, clean, "inpainted", force=force)
    pixels, missing = job.picture.pixels, read_mask(mask)
    pictures.run(
        job,
        lambda callback: inpaint_image(pixels, missing, random_state=seed, callback=callback),
        pixels,
        {"missing": float(missing.mean())},
        as_json=as_json,
    )


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the results.")
    ] = Path("spikeslab-demo"),
    force: Force = False,
) -> None:
    """Mix four voices into a noisy recording of four channels, and separate them again.

    [dim]spikeslab demo -o demo[/]
    """
    run_demo(output, force=force)


@app.command()
def reproduce(
    experiment: Annotated[
        Literal["prior", "verification", "directions", "separation", "all"],
        typer.Argument(metavar="EXPERIMENT", help="One of the four, or all."),
    ] = "all",
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder for the results. Finished trials in it are not run again.",
        ),
    ] = Path("spikeslab-paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer runs and data sets: minutes, not hours.")
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            show_default=False,
            help="Runs or data sets per setting; if not given, the paper's 250 or 100.",
        ),
    ] = None,
    icalab: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Folder with 10halo.mat, Sergio7.mat, Speech4.mat and c5signals.mat of the ICALAB "
            "toolbox, each one matrix with a source in every row. If not given, stand-ins.",
        ),
    ] = None,
    speech: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Folder with recorded prompts for the stand-ins, one sub-folder a language, as "
            "Debian's asterisk-core-sounds-{en,es,fr,it,ru}-wav install them. If not given, these "
            "if they are installed, else the voices of [bold]spikeslab demo[/].",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="The same seed gives the same results.json.")
    ] = 0,
    jobs: Annotated[
        int,
        typer.Option(
            min=-1, metavar="N", help="Processes; the results are the same. -1 is all processors."
        ),
    ] = -1,
    as_json: AsJson = False,
) -> None:
    """Run the experiments of the paper, and show its figures and numbers beside what was found.

    Writes [bold]report.html[/], its figures as .png and .svg, and [bold]results.json[/]. Ctrl-C
    loses nothing: the same command goes on where it was. The full protocol takes hours.

    The benchmarks of the paper's Table 1 come with the ICALAB toolbox, whose authors do not allow
    them to be passed on. Without --icalab similar signals stand in for them, and are called
    stand-ins wherever they are shown.

    [dim]spikeslab reproduce --quick[/]
    [dim]spikeslab reproduce directions --trials 20 -o directions[/]
    [dim]spikeslab reproduce separation --icalab ICALAB/benchmarks[/]
    """
    names = EXPERIMENTS if experiment == "all" else (experiment,)
    if icalab is not None and speech is not None:
        raise ValueError("--speech is for stand-ins, and with --icalab there are none: drop one")
    plan = Plan(
        seed=seed,
        trials=trials,
        quick=quick,
        icalab=None if icalab is None else Path(os.path.abspath(icalab)),
        speech=reproduction.prompts(speech) if icalab is None and "separation" in names else None,
    )
    results = reproduction.run_experiments(names, output, plan, jobs)
    if as_json:
        summary.print_json({"output": str(output), "results": results})
    else:
        reproduction.print_results(results)
        print(f"The report is {output / 'report.html'}; all numbers are in results.json beside it.")


def _number_of_sources(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"-n must be a whole number or auto, got {text!r}") from None


def _noise(text: str) -> float | None:
    """The number, or None for auto."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--sigma must be a number or auto, got {text!r}") from None
