"""Requests to the view: each route checks what was asked, and leaves the answer to a function without HTTP."""

from __future__ import annotations

import functools
import json
import math
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, NotFound

from diagnose.tensorboard.loader import PLUGIN_NAME, TAB_NAME

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".md": "text/plain"}
_INDEX = "/static/index.js"
#: Seconds between two looks for new data where TensorBoard does not say.
_INTERVAL_S = 5.0

Handler = Callable[["CurveDoctorPlugin", Request], Any]


def _json_route(handler: Handler) -> Callable[..., Any]:
    """A handler's plain values as strict JSON; an error of the asker's or of ours as JSON too, never as a broken page."""

    @functools.wraps(handler)
    def serve(self: CurveDoctorPlugin, request: Request) -> Any:
        code = 200
        try:
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed(["GET"])
            told = handler(self, request)
        except HTTPException as error:
            code, told = error.code or 500, {"error": error.description}
        except Exception as error:  # noqa: BLE001 - shown in the tab; TensorBoard goes on
            code, told = 500, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        content = json.dumps(told, allow_nan=False, separators=(",", ":"))
        return http_util.Respond(request, content, "application/json", code=code)

    return _application(serve)


def _application(serve: Any) -> Callable[..., Any]:
    """A method that takes a request as a WSGI application; werkzeug's types know of functions only."""
    application: Callable[..., Any] = Request.application(serve)
    return application


class CurveDoctorPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab. Nothing is read before its page asks.

    Args:
        context: TensorBoard's `TBContext`.
    """

    plugin_name = PLUGIN_NAME

    def __init__(self, context: Any) -> None:
        self._context = context
        self._catalog: Any = None
        self._lock = threading.Lock()

    def get_plugin_apps(self) -> dict[str, Any]:
        return {
            "/runs": self.runs_route,
            "/run": self.run_route,
            "/curve": self.curve_route,
            "/explain": self.explain_route,
            _INDEX: self.static_route,
            "/static/*": self.static_route,
        }

    def is_active(self) -> bool:
        """Whether there is a log in the folder, be it one that TensorBoard itself does not read. The first one settles it."""
        from diagnose.readers.sniff import is_log_name

        if not self._context.logdir:
            return False
        return any(is_log_name(name) for _, _, names in os.walk(self._root) for name in names)

    def data_plugin_names(self) -> tuple[str, ...]:
        return ("scalars",)

    def frontend_metadata(self) -> Any:
        return base_plugin.FrontendMetadata(es_module_path=_INDEX, tab_name=TAB_NAME)

    @property
    def catalog(self) -> Any:
        """What was read and examined; made when the page first asks, which it may do twice at once."""
        with self._lock:
            if self._catalog is None:
                from diagnose.tensorboard.catalog import Catalog

                interval_s = getattr(self._context.flags, "reload_interval", None)
                wait_s = _INTERVAL_S if interval_s is None else max(float(interval_s), 0.0)
                self._catalog = Catalog(self._find_source, _load_rules, wait_s)
            return self._catalog

    @functools.cached_property
    def _provider_source(self) -> Any:
        from diagnose.tensorboard.provider import ProviderSource

        hints = self._context.sampling_hints or {}
        return ProviderSource(self._context.data_provider, hints.get("scalars"))

    @functools.cached_property
    def _folder_source(self) -> Any:
        from diagnose.tensorboard.folder import FolderSource

        return FolderSource(self._root)

    @property
    def _root(self) -> Path:
        return Path(os.path.expanduser(self._context.logdir or ""))  # noqa: PTH111 - Path raises where there is no home

    def _find_source(self) -> Any:
        """The log folder where there is one; what TensorBoard has loaded where it reads several, or from elsewhere."""
        is_folder = bool(self._context.logdir) and self._root.is_dir()
        return self._folder_source if is_folder else self._provider_source

    @_json_route
    def runs_route(self, request: Request) -> Any:
        """`?since=VERSION&watch=RUN…`: the list of runs; `watch` names those that are looked at."""
        from diagnose.tensorboard import views

        since = _number(request, "since", -1.0)
        catalog = self.catalog
        found = [views.find(catalog.listing, key) for key in request.args.getlist("watch")]
        listing = catalog.ask(entry.examined.run.id for entry in found if entry is not None)
        return views.runs_impl(catalog, listing, since=int(since or 0))

    @_json_route
    def run_route(self, request: Request) -> Any:
        """`?run=RUN`: what there is to say of it."""
        from diagnose.tensorboard import views

        told = views.run_impl(self.catalog.ask(), key := _run(request))
        if told is None:
            raise NotFound(f"no run {key!r}")
        return told

    @_json_route
    def curve_route(self, request: Request) -> Any:
        """`?run=RUN&axis=step|epoch|time&from=X&to=X&columns=N&smoothing=W`: its curves."""
        from diagnose.tensorboard import views
        from diagnose.tensorboard.axes import Axis
        from diagnose.tensorboard.curve import DEFAULT_COLUMNS, Window, curve

        entry = views.find(self.catalog.ask(), key := _run(request))
        if entry is None:
            raise NotFound(f"no run {key!r}")
        name = request.args.get("axis", Axis.STEP.value)
        if name not in list(Axis):
            raise BadRequest(f"axis must be one of {', '.join(Axis)}; got {name!r}")
        window = Window(
            Axis(name),
            _number(request, "from"),
            _number(request, "to"),
            int(_number(request, "columns", DEFAULT_COLUMNS) or 0),
            _number(request, "smoothing", 0.0) or 0.0,
        )
        examined = entry.examined
        return {"key": key, "version": entry.version, **curve(examined.run, examined.report, window)}

    @_json_route
    def explain_route(self, request: Request) -> Any:
        """`?code=CODE`: what a rule sees, why it matters, what to do, and when it is wrong."""
        from diagnose.config import find_rule
        from diagnose.errors import ConfigError
        from diagnose.explain import explain

        try:
            told = explain(find_rule(request.args.get("code", "")))
        except ConfigError as error:
            raise NotFound(str(error)) from error
        return {"code": told.code, "name": told.name, "sentence": told.sentence, "sections": told.sections}

    @_application
    def static_route(self, request: Request) -> Any:
        """A file of the page: only one that is in the package, by its exact name."""
        name = request.path.partition(f"/{PLUGIN_NAME}/static/")[2]
        path = _static_files().get(name)
        if path is None or request.method not in ("GET", "HEAD"):
            return Response("no such file", 404, content_type="text/plain")
        return http_util.Respond(request, path.read_bytes(), _TYPES.get(path.suffix, "text/plain"))


@functools.cache
def _static_files() -> dict[str, Path]:
    """Name in a URL to file, of all that the page is made of."""
    return {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*") if path.is_file()}


def _load_rules() -> Any:
    """The rules that `diagnose` applies where TensorBoard was started.

    Raises:
        ConfigError: the configuration says something unknown.
    """
    from diagnose.config import load, rules_from

    config = load()
    return rules_from(config.select, config.ignore, config.thresholds)


def _run(request: Request) -> str:
    key = request.args.get("run")
    if key is None:
        raise BadRequest("expected ?run=RUN")
    return key


def _number(request: Request, name: str, default: float | None = None) -> float | None:
    """A number from the query.

    Raises:
        BadRequest: it is none, or not finite.
    """
    text = request.args.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name} must be a number, got {text!r}")
    return value
