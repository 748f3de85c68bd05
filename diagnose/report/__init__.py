"""Reports as text, JSON and Markdown. Rendering only: nothing here judges."""
