"""What pipelines over readings have in common."""

import math

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom


def is_finite(value: Column) -> Column:
    """Whether a value can be counted with. JSON has neither NaN nor infinity, but Spark reads them, and one of a device
    would spoil all of its window; null is none either."""
    return F.abs(value.cast("double")) < math.inf  # NaN is greater than all others
