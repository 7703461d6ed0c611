"""One Spark session for all tests of this folder: each start costs seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from streaming.java import JavaNotFound, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    pytest.importorskip("pyspark")
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    from streaming.session import spark_session

    scratch = tmp_path_factory.mktemp("spark")
    config = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch / "local")}
    session = spark_session("sluice-tests", config=config)
    yield session
    session.stop()
