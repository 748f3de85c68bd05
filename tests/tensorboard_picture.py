"""The picture of the view in the README: the recorded curves in a real TensorBoard.

python tests/tensorboard_picture.py docs/tensorboard.png [--dark] [--width 1280] [--height 860] [--run memorization]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tensorboard_logs import write_recorded
from tensorboard_server import browser, tensorboard

#: One of each kind.
SHOWN = (
    "memorization",
    "nan-unfiltered",
    "lora-lr3e-2",
    "masked-eval-labels",
    "bad-batch",
    "epoch-staircase",
    "lora-lr1e-3",
    "lora-lr1e-2",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--run", default="memorization")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        write_recorded(Path(folder, "runs"), SHOWN)
        with tensorboard("--logdir", "runs", cwd=Path(folder)) as server:
            server.settled()
            page = chromium.new_page(viewport={"width": args.width, "height": args.height})
            page.goto(server.page(args.run, dark=args.dark))
            page.frame_locator("iframe").locator(".card").first.wait_for()
            page.wait_for_timeout(1500)  # TensorBoard's own progress bar goes away
            page.screenshot(path=args.target)


if __name__ == "__main__":
    main()
