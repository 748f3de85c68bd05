"""A real TensorBoard and a real Chromium, for the tests and benchmarks of the view, and for its picture."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

#: What Chromium needs as root, and in a container; and nothing of its own over the network.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_START_S = 60


class Server:
    """A TensorBoard that runs.

    Args:
        url: of its page, without a slash at the end.
        log: the file that holds what it printed.
    """

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log = url, log

    def page(self, run: str | None = None, *, dark: bool = False, framed: bool = True, **choice: str) -> str:
        """The URL of our tab in TensorBoard, or of what is in its frame alone."""
        chosen = {**({} if run is None else {"run": run}), **choice}
        parts = [f"p.curve_doctor.{key}={quote(value, safe='')}" for key, value in chosen.items()]
        if not framed:
            return f"{self.url}/data/plugin_entry.html?name=curve_doctor#{'&'.join(parts)}"
        return f"{self.url}/{'?darkMode=true' if dark else ''}#" + "&".join(["curve_doctor", *parts])

    def get(self, route: str, **query: Any) -> tuple[int, bytes]:
        """Status and body of one of our routes."""
        return self.raw(f"/data/plugin/curve_doctor/{route}" + (f"?{urlencode(query)}" if query else ""))

    def raw(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, route: str, **query: Any) -> Any:
        status, body = self.get(route, **query)
        assert status == 200, (status, body)
        return json.loads(body, parse_constant=_refuse)

    def settled(self, timeout_s: float = 60.0) -> Any:
        """The list of runs, once all of them are examined."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            told = self.json("runs")
            if told["is_read"] and not told["n_pending"]:
                return told
            time.sleep(0.1)
        raise AssertionError(f"not settled within {timeout_s} s: {told}")


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


@contextmanager
def tensorboard(*arguments: str | Path, cwd: Path, **environment: str) -> Iterator[Server]:
    """Start TensorBoard with our plugin and stop it at the end.

    Args:
        arguments: such as `--logdir runs`.
        cwd: where it is started.
        environment: variables besides those of this process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = cwd / f"tensorboard-{port}.txt"
    command = [sys.executable, "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", str(port), *map(str, arguments)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=out, env={**os.environ, **environment})
    server = Server(f"http://127.0.0.1:{port}", log)
    try:
        end = time.monotonic() + _START_S
        while True:
            try:
                server.raw("/data/environment")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"TensorBoard did not start:\n{log.read_text(errors='replace')}") from None
                time.sleep(0.05)
        known = json.loads(server.raw("/data/plugins_listing")[1])
        assert "curve_doctor" in known, "TensorBoard does not find the plugin: install this checkout anew (pip install -e .)"
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)


def chromium() -> str | None:
    """The system's Chromium; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, with a profile of its own that is gone afterwards."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield opened
        finally:
            opened.close()
