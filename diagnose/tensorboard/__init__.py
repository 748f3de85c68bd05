"""The view in TensorBoard: reads the logs it was started on, examines every run, and shows what the engine concludes.

`loader` is what TensorBoard imports; `plugin` answers requests; `catalog` keeps what was read and examined; `static/` is the
page. Nothing here decides anything about a curve.
"""
