"""What `denoise` and `inpaint` do with files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import plotting
from .._arrays import Array
from .._files import write_whole
from ..image_files import Picture, read_picture
from ..images import Callback
from ..metrics import psnr
from .progress import image_bar
from .summary import print_json

Restore = Callable[[Callback | None], np.ndarray]


@dataclass(frozen=True)
class Job:
    """A picture to restore, where to, and what is known of the truth."""

    source: Path
    target: Path
    picture: Picture
    clean: Picture | None

    @property
    def figure(self) -> Path:
        return self.target.with_name(f"{self.target.stem}-comparison.png")


def prepare(
    source: Path, output: Path | None, clean: Path | None, ending: str, *, force: bool
) -> Job:
    """Read and check everything before the work begins."""
    picture = read_picture(source)
    truth = None if clean is None else read_picture(clean)
    if truth is not None and truth.pixels.shape != picture.pixels.shape:
        raise ValueError(
            f"{clean} has shape {truth.pixels.shape}, but {source} has {picture.pixels.shape}"
        )
    job = Job(source, output or Path(f"{source.stem}-{ending}{source.suffix}"), picture, truth)
    picture.check_target(job.target)
    for path in [job.target, *([job.figure] if clean else [])]:
        if path.is_dir():
            raise IsADirectoryError(f"cannot write {path}: it is a folder")
        if path.exists() and not force:
            raise FileExistsError(
                f"{path} exists; give another name with -o, or replace it with --force"
            )
    return job


def run(job: Job, restore: Restore, before: Array, facts: dict[str, Any], *, as_json: bool) -> None:
    """Restore the picture, write it and say so. `before` is what the result is compared with."""
    begin = time.perf_counter()
    with image_bar() as callback:
        after = restore(callback)
    seconds = time.perf_counter() - begin
    files = [str(job.target)]
    record = {"input": str(job.source), "output": str(job.target), **facts}
    figure = None
    if job.clean is not None:
        truth, peak = job.clean.pixels, job.clean.peak
        record["psnr_before"] = psnr(before, truth, peak)
        record["psnr_after"] = psnr(np.clip(after, 0, peak), truth, peak)
        figure = plotting.pictures(
            {
                f"before: {record['psnr_before']:.2f} dB": before / peak,
                f"after: {record['psnr_after']:.2f} dB": after / peak,
                "clean": truth / peak,
            }
        )
        files.append(str(job.figure))
    job.picture.write(job.target, after)
    if figure is not None:
        write_whole(job.figure, plotting.to_png(figure))
    if as_json:
        print_json({**record, "files": files, "seconds": seconds})
        return
    for name, value in facts.items():
        print(f"{name.capitalize().replace('_', ' ')}: {value:.4g}")
    if job.clean is not None:
        print(f"PSNR: {record['psnr_before']:.2f} dB before, {record['psnr_after']:.2f} dB after")
    print(f"Written in {seconds:.1f} s: {', '.join(files)}")
