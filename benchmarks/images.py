"""Denoising and inpainting beside others:
`python benchmarks/images.py > benchmarks/results/images.md`.

Prints Markdown tables. Every method sees the same images. Finished runs are kept in a file and not
run again. Methods that are not installed (`pip install spams-bin bm3d`) are left out; held-out
images are those inside PyWavelets and scikit-image, where these are installed.
"""

import argparse
import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import json
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.interpolate import griddata
from sklearn.datasets import load_sample_image
from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.linear_model import orthogonal_mp_gram

from machine import machine
from separation_tables import table
from spikeslab.experiments.trials import Store, Trial
from spikeslab.images import denoise, inpaint
from spikeslab.metrics import psnr
from spikeslab.patches import Average, Patches

Array = NDArray[np.float64]

HERE = Path(__file__).parent
SIDE = 256
LUMA = np.array([0.299, 0.587, 0.114])
PHOTOGRAPHS = {"china": (100, 150), "flower": (100, 200)}
HELD_OUT = {
    "pywt": ("aero", "ascent"),
    "skimage": ("astronaut", "brick", "camera", "chelsea", "coffee", "gravel", "moon"),
}
OURS, FAST = "spikeslab", "spikeslab, fast"
DICTIONARIES = ("MiniBatchDL + OMP", "spams")


def photograph(name: str) -> Array:
    """A grey crop, 0 to 255."""
    if name in PHOTOGRAPHS:
        top, left = PHOTOGRAPHS[name]
        grey = load_sample_image(f"{name}.jpg") @ LUMA
        return grey[top : top + SIDE, left : left + SIDE]
    package = next(package for package, names in HELD_OUT.items() if name in names)
    spec = find_spec(package)
    folder = Path(spec.origin).parent / "data"
    if package == "pywt":
        image = np.load(folder / f"{name}.npz")["data"].astype(float)
    else:
        image = np.asarray(Image.open(folder / f"{name}.png").convert("RGB")) @ LUMA
    top, left = (np.array(image.shape) - SIDE) // 2
    return image[top : top + SIDE, left : left + SIDE]


# ---- methods ----


Pursuit = Callable[[Array, Array, float], Array]  # details, dictionary, energy left: the codes


def _by_dictionary(
    noisy: Array, sigma: float, learn: Callable[[Array], Array], pursue: Pursuit
) -> Array:
    """A dictionary of the patches, orthogonal matching pursuit up to the noise's energy, and the
    plain average of the overlaps.
    """
    image = noisy[:, :, None]
    patches = Patches(image.shape, 8)
    dictionary = learn(patches.sample(image, len(patches), np.random.default_rng(0)))
    average = Average(patches)
    for strip in patches.strips():
        details, means = patches.split(image, strip)
        energy = details.shape[1] * (1.15 * sigma) ** 2
        found = pursue(details, dictionary, energy) @ dictionary
        average.add(strip, patches.join(found, means), np.ones(len(found)))
    return average.image()[:, :, 0]


def mini_batch(noisy: Array, sigma: float, n_components: int) -> Array:
    def learn(details: Array) -> Array:
        model = MiniBatchDictionaryLearning(
            n_components, alpha=1.2 * sigma, batch_size=256, max_iter=10, random_state=0
        )
        return model.fit(details).components_

    # not sparse_encode: its alpha is no tolerance, and six atoms are always taken
    def pursue(details: Array, dictionary: Array, energy: float) -> Array:
        return orthogonal_mp_gram(
            dictionary @ dictionary.T,
            dictionary @ details.T,
            tol=energy,
            norms_squared=(details**2).sum(axis=1),
        ).T

    return _by_dictionary(noisy, sigma, learn, pursue)


def spams(noisy: Array, sigma: float, n_components: int) -> Array:
    from spams import omp, trainDL

    def learn(details: Array) -> Array:
        columns = np.asfortranarray(details.T)
        options = {"lambda1": 1.2 * sigma, "iter": 1000, "batchsize": 400, "numThreads": 1}
        return trainDL(columns, K=n_components, mode=2, verbose=False, **options).T.copy()

    def pursue(details: Array, dictionary: Array, energy: float) -> Array:
        columns, atoms = np.asfortranarray(details.T), np.asfortranarray(dictionary.T)
        return omp(columns, atoms, eps=energy, numThreads=1).T

    return _by_dictionary(noisy, sigma, learn, pursue)


def bm3d(noisy: Array, sigma: float, n_components: int) -> Array:
    from bm3d import bm3d as restore

    return restore(noisy, sigma)


METHODS: dict[str, Callable[[Array, float, int], Array]] = {
    OURS: lambda noisy, sigma, H: denoise(noisy, sigma, n_components=H),
    FAST: lambda noisy, sigma, H: denoise(noisy, sigma, n_components=H, fast=True),
    "MiniBatchDL + OMP": mini_batch,
    "spams": spams,
    "BM3D": bm3d,
}
_NEEDS = {"spams": "spams", "BM3D": "bm3d"}


def cubic(image: Array, missing: NDArray[np.bool_]) -> Array:
    """Cubic interpolation, and the nearest pixel outside of what it covers."""
    known = np.argwhere(~missing)
    wanted = np.argwhere(missing)
    found = griddata(known, image[~missing], wanted, method="cubic")
    nearest = griddata(known, image[~missing], wanted, method="nearest")
    filled = image.copy()
    filled[missing] = np.where(np.isfinite(found), found, nearest)
    return filled


FILLERS: dict[str, Callable[[Array, NDArray[np.bool_]], Array]] = {
    OURS: inpaint,
    "cubic": cubic,
}


# ---- runs ----


def run(settings: dict[str, Any]) -> dict[str, float]:
    """PSNR and seconds of one method on one image."""
    clean = photograph(settings["image"])
    rng = np.random.default_rng(settings["seed"])
    if "missing" in settings:
        missing = rng.random(clean.shape) < settings["missing"]
        given = np.where(missing, 0.0, clean)
        work = lambda: FILLERS[settings["method"]](given, missing)  # noqa: E731
    else:
        sigma = settings["sigma"]
        noisy = clean + sigma * rng.standard_normal(clean.shape)
        work = lambda: METHODS[settings["method"]](noisy, sigma, settings["H"])  # noqa: E731
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = work()
    seconds = time.perf_counter() - begin
    return {"psnr": psnr(np.clip(found, 0, 255), clean), "seconds": seconds}


def denoising_cells(arguments: argparse.Namespace, images: list[str]) -> Iterator[dict[str, Any]]:
    for image in images:
        for sigma in arguments.sigmas:
            for n_components in arguments.components:
                for method in METHODS:
                    if method in _NEEDS and find_spec(_NEEDS[method]) is None:
                        continue
                    for seed in arguments.seeds:
                        yield {
                            "image": image,
                            "sigma": sigma,
                            # BM3D has no dictionary: its runs are shared
                            "H": 0 if method == "BM3D" else n_components,
                            "method": method,
                            "seed": seed,
                        }


def inpainting_cells(arguments: argparse.Namespace, images: list[str]) -> Iterator[dict[str, Any]]:
    for image in images:
        for fraction in (0.5, 0.8):
            for method in FILLERS:
                for seed in arguments.seeds:
                    yield {"image": image, "missing": fraction, "method": method, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description="Denoising and inpainting beside others.")
    parser.add_argument("--images", nargs="*", help="(default: scikit-learn's two photographs)")
    parser.add_argument("--held-out", action="store_true", help="the held-out images instead")
    parser.add_argument("--sigmas", nargs="*", type=float, default=[25.0, 50.0])
    parser.add_argument("--components", nargs="*", type=int, default=[64, 256])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="methods with TEXT in their name"
    )
    parser.add_argument("--no-inpainting", action="store_true")
    parser.add_argument("--no-denoising", action="store_true")
    parser.add_argument(
        "--keep",
        type=Path,
        default=HERE.parent / "build" / "images.jsonl",
        metavar="FILE",
        help="where finished runs are (default: build/images.jsonl)",
    )
    arguments = parser.parse_args()
    images = arguments.images or list(PHOTOGRAPHS)
    if arguments.held_out:
        images = [name for package, some in HELD_OUT.items() if find_spec(package) for name in some]
    arguments.keep.parent.mkdir(parents=True, exist_ok=True)
    parts = ["# Results of benchmarks/images.py\n", machine() + "\n"]
    absent = [name for name, package in _NEEDS.items() if find_spec(package) is None]
    if absent:
        parts.append(f"Not installed, so left out: {', '.join(absent)}.\n")
    with Store(arguments.keep) as store:

        def finished(cells: Iterator[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]]:
            done = []
            for settings in cells:
                if arguments.only not in settings["method"]:
                    continue
                trial = Trial("images", settings, 1.0, settings["method"])
                if trial not in store:
                    store.add(trial, json.dumps(run(settings)))
                done.append((settings, store[trial]))
            return done

        if not arguments.no_denoising:
            parts.append(denoising_table(finished(denoising_cells(arguments, images))))
        if not arguments.no_inpainting:
            parts.append(inpainting_table(finished(inpainting_cells(arguments, images))))
    print("\n".join(parts).rstrip())


# ---- tables ----


def _means(runs: list[Any]) -> tuple[float, float]:
    return (
        float(np.mean([outcome["psnr"] for outcome in runs])),
        float(np.median([outcome["seconds"] for outcome in runs])),
    )


def denoising_table(done: list[tuple[dict[str, Any], Any]]) -> str:
    """A row for each image, noise and number of components."""
    cells: dict[tuple[str, float, int], dict[str, list[Any]]] = {}
    shared: dict[tuple[str, float], list[Any]] = {}
    for settings, outcome in done:
        key = (settings["image"], settings["sigma"])
        if settings["H"] == 0:
            if outcome not in shared.setdefault(key, []):
                shared[key].append(outcome)
        else:
            of_cell = cells.setdefault((*key, settings["H"]), {})
            of_cell.setdefault(settings["method"], []).append(outcome)
    rows, ahead, beside = [], [], []
    for (image, sigma, H), found in cells.items():
        if (image, sigma) in shared:
            found = found | {"BM3D": shared[image, sigma]}
        row = [image, f"{sigma:g}", str(H)]
        row += [
            "{:.2f} ({:.1f} s)".format(*_means(found[m])) if m in found else "" for m in METHODS
        ]
        ours = _means(found[OURS])[0] if OURS in found else np.nan
        others = [_means(found[name])[0] for name in DICTIONARIES if name in found]
        ahead.append(ours - max(others) if others else np.nan)
        beside.append(ours - _means(found["BM3D"])[0] if "BM3D" in found else np.nan)
        rows.append([*row, f"{ahead[-1]:+.2f}", f"{beside[-1]:+.2f}"])
    head = ["image", "sigma", "H", *METHODS, "ours - best dictionary", "ours - BM3D"]
    return (
        f"## Denoising, PSNR in dB (median seconds)\n\n{table(head, rows)}\n"
        f"Ahead of the best dictionary in {sum(x > 0 for x in ahead)} of {len(ahead)} cells "
        f"(target: all), least {np.min(ahead):+.2f} dB; beside BM3D on average "
        f"{np.mean(beside):+.2f} dB (target: at least 0). The others have one setting each, as "
        "their authors suggest; nobody was tuned to these images but for what the notes say.\n"
    )


def inpainting_table(done: list[tuple[dict[str, Any], Any]]) -> str:
    cells: dict[tuple[str, float], dict[str, list[Any]]] = {}
    for settings, outcome in done:
        of_cell = cells.setdefault((settings["image"], settings["missing"]), {})
        of_cell.setdefault(settings["method"], []).append(outcome)
    rows = []
    for (image, missing), found in cells.items():
        row = [image, f"{missing:.0%}"]
        row += [
            "{:.2f} ({:.1f} s)".format(*_means(found[m])) if m in found else "" for m in FILLERS
        ]
        if len(found) == len(FILLERS):
            row.append(f"{_means(found[OURS])[0] - _means(found['cubic'])[0]:+.2f}")
        rows.append(row)
    head = ["image", "missing", *FILLERS, "difference (target: +2.5)"]
    return f"## Inpainting, PSNR in dB (median seconds)\n\n{table(head, rows)}"


if __name__ == "__main__":
    main()
