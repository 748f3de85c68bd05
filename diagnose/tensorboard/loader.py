"""What TensorBoard imports at its start, on every machine where Curve Doctor is installed.

An import error here would keep TensorBoard from starting. So this module imports nothing but TensorBoard itself, and where
the view cannot be loaded, its tab says why.
"""

from __future__ import annotations

import json
import traceback
from typing import Any

from tensorboard.plugins import base_plugin

#: As it stands in URLs: `/data/plugin/curve_doctor/…`, `#curve_doctor`.
PLUGIN_NAME = "curve_doctor"
TAB_NAME = "Curve Doctor"


class CurveDoctorLoader(base_plugin.TBLoader):  # type: ignore[misc]
    """Makes the view, or in its place a tab that says why there is none."""

    def load(self, context: Any) -> Any:
        """A plugin for TensorBoard.

        Args:
            context: TensorBoard's `TBContext`.
        """
        try:
            from diagnose.tensorboard.plugin import CurveDoctorPlugin

            return CurveDoctorPlugin(context)
        except Exception:  # noqa: BLE001 - whatever it is, TensorBoard has to start
            return FailedPlugin(traceback.format_exc())


class FailedPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """A tab that shows an error.

    Args:
        told: the error with its traceback.
    """

    plugin_name = PLUGIN_NAME

    def __init__(self, told: str) -> None:
        self._told = told

    def get_plugin_apps(self) -> dict[str, Any]:
        return {"/index.js": self._serve_index}

    def is_active(self) -> bool:
        return True

    def data_plugin_names(self) -> tuple[str, ...]:
        return ()

    def frontend_metadata(self) -> Any:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name=TAB_NAME)

    def _serve_index(self, environ: Any, start_response: Any) -> list[bytes]:
        message = f"Curve Doctor could not be loaded. TensorBoard itself is not concerned.\n\n{self._told}"
        script = f"""export function render() {{
  const told = document.createElement("pre");
  told.id = "failure";
  told.style.whiteSpace = "pre-wrap";
  told.style.background = "#fff";
  told.style.color = "#222";
  told.style.padding = "16px";
  told.textContent = {json.dumps(message)};
  document.body.append(told);
}}
"""
        headers = [("Content-Type", "text/javascript; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]
        start_response("200 OK", [*headers, ("Cache-Control", "no-cache")])
        return [script.encode()]
