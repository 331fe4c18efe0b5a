"""Metrics of a running task for a monitoring system: Prometheus text over HTTP."""

from .declared import METRICS, Metric, markdown
from .serve import Served, address, served

__all__ = ["METRICS", "Metric", "Served", "address", "markdown", "served"]
