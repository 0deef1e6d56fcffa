"""Fixtures that several test files use."""

import os
import signal

# Matrices are small here: with threads BLAS does nothing but wait for busy cores. Last bits depend
# on their number, so it is the same in processes that tests start and in this one, where a plugin
# may have imported NumPy before.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

from collections.abc import Callable

import numpy as np
import pytest
import threadpoolctl

from browser import ARGUMENTS, CHROMIUM
from oracles import random_prior
from spikeslab import DiagonalNoise, FullNoise, IsotropicNoise, Parameters, Prior
from spikeslab._kernel import available, use

Make = Callable[..., Parameters]

threadpoolctl.threadpool_limits(1, user_api="blas")

# A shell starts what runs in the background deaf to Ctrl-C, which some tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=available())
def kernel(request):
    """The kernel for each instruction set of this machine in turn."""
    use(request.param)
    yield request.param
    use("")


@pytest.fixture
def make_parameters() -> Make:
    """Draws parameters of any shape and noise model."""

    def make(rng, noise="isotropic", n_features=4, n_latents=3, n_components=2, **prior):
        roots = rng.normal(size=(n_features, n_features))
        model = {
            "isotropic": lambda: IsotropicNoise(0.3, n_features),
            "diagonal": lambda: DiagonalNoise(rng.uniform(0.1, 0.5, n_features)),
            "full": lambda: FullNoise(roots @ roots.T / n_features + 0.1 * np.eye(n_features)),
        }[noise]()
        return Parameters(
            rng.normal(size=(n_features, n_latents)),
            rng.normal(size=n_features),
            Prior(*random_prior(rng, n_latents, n_components, **prior)),
            model,
        )

    return make


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the path")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """Open a file, and note what it complains of and asks for."""
    contexts = []

    def go(path, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.problems, page.requests = [], []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        return page

    yield go
    for context in contexts:
        context.close()
