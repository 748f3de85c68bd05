"""The command `diagnose train`: flags made from `TrainConfig`, a YAML file, and what is told at the end.

Nothing but the standard library and the config is imported until the training begins: `--help` comes at once, and works
where the train extra is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diagnose.callbacks.qlora.config import TrainConfig, is_switch, load_yaml, with_values
from diagnose.callbacks.qlora.folder import folder_of, resumed_config
from diagnose.errors import MissingExtraError

_DESCRIPTION = """\
Fine-tune a language model with the doctor inside: QLoRA, LoRA or all weights.
Data, lengths and memory are looked at first; the first steps are judged; a run
with a learning rate too high or too low is stopped and tried again with a third
or three times of it; the best checkpoint is kept.

  diagnose train --model MODEL --data train.jsonl
  diagnose train --config run.yaml --learning-rate 1e-4
  diagnose train --resume runs/qlora-r16-lr2e-4
  diagnose train --demo"""

_EPILOG = """\
exit codes: 0 trained, 1 the doctor ended it and no try is left, 2 could not run,
130 or 143 interrupted (the checkpoint is saved; go on with --resume)"""

EXIT_OK, EXIT_SICK = 0, 1
#: Set by a retry, not by hand.
_HIDDEN = ("earlier",)
_ALIASES = {"learning_rate": "--lr", "num_train_epochs": "--epochs", "total_train_batch_size": "--batch"}
_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "yaml")


def main(argv: Sequence[str], make: Callable[..., argparse.ArgumentParser]) -> int:
    """Train.

    Args:
        argv: what follows `diagnose train`.
        make: the class of parser.

    Returns:
        The exit code.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
        MissingExtraError: the train extra is not installed.
        TrainingInputError: a model, data or folder that cannot be used.
    """
    args = vars(parser(make).parse_args(argv))
    resume, overwrite, is_demo = args.pop("resume"), args.pop("overwrite"), args.pop("demo")
    file, given = args.pop("config"), args
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"training needs {', '.join(missing)}: pip install 'curve-doctor[train]'")
    _quiet()
    if isinstance(resume, str):
        config = resumed_config(Path(resume), given)
    else:
        config = TrainConfig()
        if is_demo:
            from diagnose.callbacks.qlora.demo import demo_config

            config = demo_config(Path(given.get("output_dir") or "runs/demo"))
        if file is not None:
            config = with_values(config, load_yaml(Path(file)), file)
        config = with_values(config, given, "the command line")
        if resume:
            config = resumed_config(folder_of(config), given)
    from diagnose.callbacks.qlora.train import train

    result = train(config, resume=bool(resume), overwrite=overwrite)
    if result.signal is not None:
        return 128 + result.signal
    return EXIT_OK if result.is_good else EXIT_SICK


def parser(make: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The options: one for each setting, and four that say which run.

    Args:
        make: the class of parser.
    """
    made = make(
        prog="diagnose train",
        usage="diagnose train --model MODEL --data DATA [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    made.add_argument("--config", metavar="FILE", help="settings in YAML; flags replace what it says")
    made.add_argument("--demo", action="store_true", help="train a tiny model on the CPU, first with a rate that is too high")
    made.add_argument(
        "--resume", nargs="?", const=True, metavar="FOLDER", help="go on with a run: of this folder, or of these settings"
    )
    made.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    for item in dataclasses.fields(TrainConfig):
        if item.name not in _HIDDEN:
            _add(made, item)
    made.add_argument(
        "--no-preflight", dest="preflight", action="store_const", const=0, default=argparse.SUPPRESS, help="as --preflight 0"
    )
    return made


def _add(made: argparse.ArgumentParser, item: dataclasses.Field[Any]) -> None:
    """The flag of one setting. What is not given is left out, so that a file's value stands."""
    flags = [f"--{item.name.replace('_', '-')}", *([_ALIASES[item.name]] if item.name in _ALIASES else [])]
    default = "" if item.default is None or item.default == "" else f" ({_shown(item.default)})"
    text = (item.metadata["help"] + default).replace("%", "%%")
    if is_switch(item.name):
        made.add_argument(*flags, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    else:
        made.add_argument(*flags, metavar=item.name.rpartition("_")[2].upper(), default=argparse.SUPPRESS, help=text)


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _quiet() -> None:
    """Leave the terminal to our own lines: the libraries' bars and remarks come to hundreds."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # read when the libraries are imported
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in ("transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import warnings

    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # The packages warn of their own future; what matters to a training we say ourselves.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
