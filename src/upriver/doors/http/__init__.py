"""The HTTP door: JSON, Arrow and events over HTTP, and the page. Needs the extra ``http``."""
