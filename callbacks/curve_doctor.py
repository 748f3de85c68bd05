"""The doctor as a guest in a Trainer: rows in, findings, a stop and a report out. No statistics here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diagnose.callbacks.batch_facts import batch_facts
from diagnose.callbacks.best_weights import BestWeights
from diagnose.callbacks.gradient_guard import BadGradient, GradientGuard, is_finite
from diagnose.callbacks.guard import guarded, tell_failure
from diagnose.callbacks.history import rows_of, seen_before
from diagnose.callbacks.options import CallbackOptions
from diagnose.callbacks.output import say, show_report, write_report
from diagnose.callbacks.sample_prompts import samples
from diagnose.callbacks.settings import read_settings
from diagnose.callbacks.sharding import is_sharded
from diagnose.callbacks.start_facts import model_facts
from diagnose.callbacks.step_rows import rows_of_step
from diagnose.callbacks.writers import other_callbacks, writers
from diagnose.examination import Examination
from diagnose.model import Finding, Row, Setting
from diagnose.names import BAD_GRADIENT, DROPPED, MADE
from diagnose.news import News
from diagnose.readers.own_file import note_of
from diagnose.report.words import finding_line
from diagnose.rows import build_run, row_from_log

_log = logging.getLogger("diagnose")
_OPTIONS = tuple(sorted(CallbackOptions.__dataclass_fields__))
#: Bad steps that are remembered with their rows; a run with more of them is stopped, or is not to be.
_MOST_SEEN = 1000
#: Answers of the model that are kept for the file.
_MOST_SAMPLES = 400
_NAN = ("nan-loss", "hidden-nan")


class CurveDoctor(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy, so its class is Any
    """Watches a training, says what it finds, and stops a run that is lost: `trainer.add_callback(CurveDoctor())`.

    Before the first step it looks at what no curve shows: labels, padding, trainable parameters, types, settings. At every
    step it looks at the gradient (`GradientGuard` says what that costs and how late it can be): the update of a gradient that
    is not finite is dropped, told with its step and, where their order can be told again, the rows of the training data, and
    a second one in a row stops the run. A checkpoint of weights that are not finite is never written.

    Every process decides from the numbers that the Trainer has made equal on all of them; only the first one prints and
    writes. `curve_doctor.json` goes into the output folder and each checkpoint. What a resumed run logged before is read again
    from the Trainer's log and that file. An old stop does not end it again; new evidence does.

    Args:
        stop: whether to end a lost run. False only tells, and drops no update; names of rules, such as `("nan-loss",
            "memorization")`, stop for these alone.
        patience: evaluations without a new best before memorization stops the run.
        grace: steps at the start, or a share of all steps below 1, in which nothing stops the run.
        select: codes, prefixes of codes or names of the rules to apply; all by default.
        ignore: those to leave out.
        thresholds: changed thresholds by rule name.
        on_finding: called with each Finding that is new, graver or resolved, on the first process.
        sample_prompts: up to 4 prompts; the model's answers are printed at each evaluation (64 tokens, 10 seconds each).
        rollback: whether to put the weights of the best evaluation back when the training ends. They are kept in the host's
            memory: meant for adapters.
        report: whether to print the report when the training ends.

    Raises:
        TypeError: an option that does not exist.
        ConfigError: a rule or threshold that does not exist, or a value that makes no sense.
    """

    def __init__(
        self,
        *,
        stop: bool | str | Sequence[str] = True,
        patience: int | None = None,
        grace: float = 0,
        select: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        thresholds: Mapping[str, Any] | None = None,
        on_finding: Callable[[Finding], object] | None = None,
        sample_prompts: Sequence[str] = (),
        rollback: bool = False,
        report: bool = True,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(f"CurveDoctor has no option {', '.join(sorted(unknown))}; it has {', '.join(_OPTIONS)}")
        self.options = CallbackOptions(
            stop, patience, grace, select, ignore, thresholds, on_finding, sample_prompts, rollback, report
        )
        #: The run being watched, or the last one; None before the first.
        self.examination: Examination | None = None
        #: Whether one of our own hooks failed in this run; it is told once.
        self.failed = False
        self._forget()

    def _forget(self) -> None:
        self.examination, self.failed, self._stopped = None, False, False
        self._news = News()
        self._seen: list[dict[str, Any]] = []
        self._samples: list[dict[str, Any]] = []
        self._guard: GradientGuard | None = None
        self._best: BestWeights | None = None
        self._others: Sequence[Any] = ()
        self._looked_at_evals = False

    @guarded
    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Start afresh: it is also called for a second try of `auto_find_batch_size`, and when a run is resumed."""
        self._forget()
        self._others = other_callbacks()
        settings: dict[str, Setting] = self._try(read_settings, args, state, model) or {}
        settings |= self._try(model_facts, args, model, optimizer) or {}
        settings |= self._try(batch_facts, kwargs.get("train_dataloader"), kwargs.get("processing_class")) or {}
        exam = Examination(self.options.rules(), settings=settings, policy=self.options.policy(state.max_steps))
        self._seen = self._try(seen_before, args, state) or []
        exam.curves.notes = (*exam.curves.notes, *filter(None, map(note_of, self._seen)))
        for row in rows_of(state.log_history, self._seen):
            self._news.of(exam.feed(row))
        self._guard = GradientGuard(args, may_drop=self.options.stops)
        if self.options.rollback and not is_sharded(args):
            self._best = BestWeights()
        self.examination = exam
        if state.log_history:
            self._news.of(exam.at_start())  # told when the training began
        else:
            self._tell(exam.at_start(), state)

    # The next two are called at every step, so they leave at once where there is nothing to do.

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Drop an update that would ruin the weights."""
        guard = self._guard
        if guard is None or not guard.is_on:
            return
        try:
            found = guard.look(state.global_step + 1, optimizer)
        except Exception as error:  # noqa: BLE001 - what `guarded` does, without the half microsecond that it costs
            tell_failure(self, "on_pre_optimizer_step", error)
            return
        if found:
            self._see_bad_gradients(found, args, state, control, kwargs.get("train_dataloader"))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Keep weights that are not finite from being saved: `save_total_limit` would remove a good checkpoint for them."""
        if control.should_save:
            self._look_at_weights(args, state, control, model)

    on_epoch_end = on_step_end

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Look at one more row, of training or of evaluation, and stop the run if it has to be."""
        if self._guard is not None:
            self._see_bad_gradients(self._guard.read(), args, state, control, None)
        row = row_from_log(logs or {}, state.global_step, state.epoch)
        if self.examination is not None and row is not None:
            self._feed(row, args, state, control)

    @guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any) -> None:
        """Look at the evaluation's data once: the Trainer shows it to nobody before."""
        exam = self.examination
        if self._looked_at_evals or exam is None:
            return
        self._looked_at_evals = True
        facts = batch_facts(eval_dataloader, kwargs.get("processing_class"))
        exam.curves.settings = {**exam.curves.settings, **{f"eval_{name}": value for name, value in facts.items()}}
        self._tell(exam.at_start(), state)

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Keep the best weights, and let the model speak."""
        exam = self.examination
        if exam is None:
            return
        # The Trainer ends a training whose metric_for_best_model is none of the evaluation's, right after this.
        self._tell(exam.at_start(), state)
        best = exam.curves.best
        if self._best is not None and best is not None and best.step == state.global_step:
            self._best.keep(model, best.step)
        if self.options.sample_prompts and state.is_world_process_zero and not is_sharded(args):
            began = time.perf_counter()
            said = samples(model, kwargs.get("processing_class"), self.options.sample_prompts)
            for prompt, answer in said:
                say(f"curve-doctor: step {state.global_step}: {prompt!r} -> {answer!r}")
            self._samples += [{"step": state.global_step, "prompt": prompt, "answer": answer} for prompt, answer in said]
            del self._samples[:-_MOST_SAMPLES]
            _log.debug("%d samples took %.2f s", len(said), time.perf_counter() - began)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the findings so far beside the checkpoint's own log."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            self._write(args.output_dir, checkpoint)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Put the best weights back, write the file and print the report."""
        self._stopped = True  # an evaluation that follows may still find something, but there is no run left to stop
        if self._best is not None and self._best.step not in (None, state.global_step):
            self._best.put_back(model)
            if state.is_world_process_zero:
                say(f"curve-doctor: the weights of step {self._best.step}, the best evaluation, are back in the model")
        if not state.is_world_process_zero or self.examination is None:
            return
        self._write(args.output_dir)
        if self.options.report:
            notes = self.examination.curves.notes
            rows = rows_of(state.log_history, self._seen)
            run = build_run(rows, id=Path(args.output_dir).name, source="live", notes=notes)
            show_report(self.examination.report(run.id), run)

    @guarded
    def _look_at_weights(self, args: Any, state: Any, control: Any, model: Any) -> None:
        if self.examination is None or model is None or is_sharded(args) or is_finite(model):
            return
        control.should_save = False
        if state.is_world_process_zero:
            say(f"curve-doctor: no checkpoint at step {state.global_step}: the weights are not finite")

    @guarded
    def _see_bad_gradients(self, found: Sequence[BadGradient], args: Any, state: Any, control: Any, dataloader: Any) -> None:
        for bad in found:
            seen: dict[str, Any] = {"step": bad.step, "bad_gradient": DROPPED if bad.dropped else MADE}
            if len(self._seen) < _MOST_SEEN:
                rows = self._try(rows_of_step, dataloader, state.epoch or 0.0, args.gradient_accumulation_steps)
                seen |= {"rows": rows} if rows else {}
                self._seen.append(seen)
            self._note_and_feed(seen, args, state, control)

    def _note_and_feed(self, seen: Mapping[str, Any], args: Any, state: Any, control: Any) -> None:
        exam, note = self.examination, note_of(seen)
        if exam is None:
            return
        if note is not None:
            exam.curves.notes = (*exam.curves.notes, note)
        self._feed(Row(seen["step"], {BAD_GRADIENT: seen["bad_gradient"]}), args, state, control)
        if note is not None and state.is_world_process_zero:
            say(f"curve-doctor: {note.text}")

    def _feed(self, row: Row, args: Any, state: Any, control: Any) -> None:
        exam = self.examination
        assert exam is not None  # the callers have looked
        changed = exam.feed(row)
        decision = exam.now
        if decision.stop and self.options.stops:
            # Before all output, which may fail on one process alone: the others would wait for it for ever.
            control.should_training_stop = True
            if is_sharded(args) and decision.because is not None and decision.because.name in _NAN:
                control.should_save = False  # nobody may look into the weights, and they are most likely NaN
        self._tell(changed, state)
        if state.is_world_process_zero and decision.because is not None and not self._stopped:
            self._stopped = True
            keep = "" if decision.best_step is None else f"; the evaluation was best at step {decision.best_step}"
            said = "stops the run" if self.options.stops else "would stop the run (stop=False)"
            say(f"curve-doctor: {said} at step {decision.step} for {decision.because.name}{keep}")
            self._write(args.output_dir)

    def _tell(self, findings: Sequence[Finding], state: Any) -> None:
        """Say what is news, to all who listen."""
        if not state.is_world_process_zero:
            return
        for finding in self._news.of(findings):
            line = finding_line(finding)
            say(f"curve-doctor: {line}")
            _log.info("%s", line)
            for write in writers(self._others):
                self._try(write, finding, finding.last_step)
            if self.options.on_finding is not None:
                self._try(self.options.on_finding, finding)

    def _try(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call what may fail without the rest failing with it."""
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            return tell_failure(self, getattr(call, "__name__", type(call).__name__), error)

    @guarded
    def _write(self, output_dir: str, *more: Path) -> None:
        if self.examination is None:
            return
        report = self.examination.report(Path(output_dir).name)
        for folder in (Path(output_dir), *more):
            write_report(report, folder, observed=self._seen, samples=self._samples)
