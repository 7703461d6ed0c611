"""Helpers for pipelines over readings."""

import math

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom


def is_finite(value: Column) -> Column:
    """Return whether a value is a finite number. Spark reads NaN and infinity from JSON, and one such value would spoil
    the whole window of a device. Null is not finite."""
    return F.abs(value.cast("double")) < math.inf  # in Spark, NaN is greater than every number
