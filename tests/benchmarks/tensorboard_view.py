"""How fast the view in TensorBoard is: its routes, its first paint with many runs, its chart of a long one.

    PYTHONPATH=tests python tests/benchmarks/tensorboard_view.py

It writes 200 runs of 1,000 points and one of 100,000, starts TensorBoard on each, opens the tab in a headless Chromium, and
prints what it measured. Wall times: on a machine that does other work they are upper bounds.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from event_files import scalar, write_events
from tensorboard_server import Server, browser, tensorboard

RUNS, POINTS, LONG = 200, 1000, 100_000
TRIES = 5


def curve(n: int, seed: int, start: int = 0) -> Iterator[Any]:
    """A run that learns with noise; every tenth one diverges, every seventh memorizes."""
    noise = random.Random(seed)
    for k in range(start + 1, start + n + 1):
        step, at = 10 * k, 3.0 * k
        loss = 1 + 1.5 * math.exp(-3 * k / n) + noise.gauss(0, 0.04)
        if seed % 10 == 0 and k > n // 2:
            loss += 4
        yield scalar("train/loss", step, loss, at)
        yield scalar("train/grad_norm", step, abs(noise.gauss(1, 0.1)), at)
        yield scalar("train/learning_rate", step, 2e-4 * (1 - k / (n + 1)), at)
        if k % 20 == 0:
            rise = 0.002 * (k - n / 3) * 1000 / n if seed % 7 == 0 and k > n / 3 else 0
            yield scalar("eval/loss", step, 1.05 + 1.5 * math.exp(-3 * k / n) + rise + noise.gauss(0, 0.005), at)


def timed(what: Callable[[], Any]) -> tuple[float, float]:
    """Best and worst of some calls, in ms."""
    took = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        what()
        took.append(1000 * (time.perf_counter() - begun))
    return min(took), max(took)


def routes(server: Server, run: str) -> None:
    asked: dict[str, Callable[[], Any]] = {
        "runs": lambda: server.json("runs"),
        "runs, nothing new": lambda: server.json("runs", since=10**9),
        "run": lambda: server.json("run", run=run),
        "curve": lambda: server.json("curve", run=run, columns=1200),
        "curve, smoothed": lambda: server.json("curve", run=run, columns=1200, smoothing=0.9),
        "curve, on time": lambda: server.json("curve", run=run, columns=1200, axis="time"),
    }
    for name, ask in asked.items():
        best, worst = timed(ask)
        print(f"  {name:20} {best:6.0f} to {worst:4.0f} ms")


#: Notes when the first row of the list, and the first chart, have been painted, in ms since our frame was opened.
WATCH = """
window.painted = {};
new MutationObserver(() => {
  for (const [name, selector] of [["rows", ".rows .run"], ["chart", ".uplot canvas"]])
    if (!(name in painted) && document.querySelector(selector)) {
      painted[name] = null;
      requestAnimationFrame(() => setTimeout(() => (painted[name] = performance.now())));
    }
}).observe(document, { childList: true, subtree: true });
"""
#: The same of the moment when the points had come.
DATA = "performance.getEntriesByType('resource').find((e) => e.name.includes('/curve?')).responseEnd"


def paint(page: Any, url: str) -> None:
    """Open the tab; tell when there are rows, when the chart stands, and when every run has its verdict."""
    page.add_init_script(WATCH)
    begun = time.perf_counter()
    page.goto(url)
    frame = page.frame_locator("iframe")
    frame.locator(".detail .uplot").first.wait_for(timeout=60_000)
    page.wait_for_timeout(500)
    inner = next(f for f in page.frames if "plugin_entry" in f.url)
    inner.wait_for_function("!document.querySelector('.status').textContent.includes('…')", timeout=300_000)
    done = time.perf_counter() - begun
    opened = inner.evaluate("performance.timeOrigin - window.parent.performance.timeOrigin") / 1000
    painted, data = inner.evaluate("painted"), inner.evaluate(DATA)
    print(f"  TensorBoard opens our frame {opened:.2f} s after its own page; in the frame:")
    print(f"  first rows   {painted['rows'] / 1000:6.2f} s")
    print(
        f"  chart        {painted['chart'] / 1000:6.2f} s, which is {painted['chart'] - data:.0f} ms after its points had come"
    )
    print(f"  all examined {done - opened:6.2f} s: {inner.text_content('.status div')}")


#: Scrolls the list by a little in each frame and tells how long the frames took, in ms.
SCROLL = """async () => {
  const rows = document.querySelector(".rows");
  const times = [];
  let last = performance.now();
  for (let i = 0; i < 120; i += 1) {
    rows.scrollTop += 120;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - last);
    last = performance.now();
  }
  times.sort((a, b) => a - b);
  return [times[60], times[114], times[119]];
}"""


def is_there(rows: list[dict[str, Any]]) -> bool:
    """Whether the points that were appended are examined."""
    return bool(rows) and not rows[0]["is_pending"] and rows[0]["last_step"] > 10 * LONG


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        many, one = Path(folder, "many"), Path(folder, "one")
        for k in range(RUNS):
            write_events(many / f"run-{k:03}", curve(POINTS, k))
        path = write_events(one / "long", curve(LONG, 1))
        print(f"{RUNS} runs of {POINTS} points")
        with tensorboard("--logdir", many, cwd=Path(folder)) as server:
            page = chromium.new_page(viewport={"width": 1400, "height": 900})
            paint(page, server.page())
            inner = next(f for f in page.frames if "plugin_entry" in f.url)
            print("  scrolling, frame median, 95 %, worst: {:.0f}, {:.0f}, {:.0f} ms".format(*inner.evaluate(SCROLL)))
            routes(server, "run-000")
            page.close()
        print(f"one run of {LONG} points, {path.stat().st_size / 1e6:.1f} MB")
        with tensorboard("--logdir", one, cwd=Path(folder)) as server:
            page = chromium.new_page(viewport={"width": 1400, "height": 900})
            paint(page, server.page())
            routes(server, "long")
            told = server.json("runs")["version"]
            added = write_events(Path(folder, "more"), curve(200, 1, start=LONG)).read_bytes()
            begun = time.perf_counter()
            with path.open("ab") as file:
                file.write(added)
            while not is_there(server.json("runs", since=told)["rows"]):
                time.sleep(0.05)
            took = time.perf_counter() - begun
            print(f"  200 points more are examined {took:.2f} s after they were written (looked for every 5 s)")
            page.close()


if __name__ == "__main__":
    main()
