"""A browser for tests of pages, and what is asked of every page."""

import shutil

import numpy as np

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Elements that stick out at the right, but for those that scroll in a box of their own.
OVERFLOWING = """() => [...document.querySelectorAll("body *")]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("thead, .wide > *"))
  .map(e => e.outerHTML.slice(0, 80))"""
# Every text with its colour and the one behind it.
INKS = """() => [...document.querySelectorAll("body *")].filter(e =>
    [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.offsetParent)
  .map(e => {
    let behind = e;
    while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
      behind = behind.parentElement;
    const back = getComputedStyle(behind || document.body).backgroundColor;
    return [e.textContent.trim().slice(0, 30), getComputedStyle(e).color, back];
  })"""


def luminance(colour):
    """Relative luminance of WCAG 2.1."""
    values = np.array([float(v) for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)
