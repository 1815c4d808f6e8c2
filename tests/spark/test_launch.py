"""Properties of a Spark session for each kind of master, and the file that passes them to the JVM."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyspark
import pytest

from ingestd.spark.launch import properties_text, spark_properties
from ingestd.spark.options import SparkOptions

SCRATCH = Path("/tmp/ingestd-spark-x")
LOCAL = ["local", "local[2]", "local[*]", "local[4,2]", "local-cluster[2,1,1024]"]
ON_THIS_MACHINE = [*LOCAL, "spark://127.0.0.1:7077", "spark://localhost:7077"]
HAS_UNIX_SOCKETS = not pyspark.__version__.startswith(("3.", "4.0."))
CLUSTERS = ["yarn", "spark://master:7077", "spark://one:7077,two:7077", "k8s://https://api:6443"]


def test_cores_when_the_master_names_them_then_they_are_known_before_spark_has_started() -> None:
    masters = {"local": 1, "local[3]": 3, "local[4,2]": 4, "local[*]": os.cpu_count(), "yarn": 16}
    assert {master: SparkOptions(master=master).cores for master in masters} == masters


@pytest.mark.parametrize("master", ON_THIS_MACHINE)
def test_properties_when_the_master_is_local_then_the_driver_binds_to_loopback(master: str) -> None:
    properties = spark_properties(master, {}, SCRATCH)
    assert properties["spark.master"] == master
    assert properties["spark.driver.host"] == "127.0.0.1"
    assert properties["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("master", CLUSTERS)
def test_properties_when_the_master_is_a_cluster_then_executors_can_reach_the_driver(master: str) -> None:
    properties = spark_properties(master, {}, SCRATCH)
    assert properties["spark.master"] == master
    assert not [key for key, value in properties.items() if "127.0.0.1" in value or "localhost" in value]
    assert "spark.driver.host" not in properties
    assert properties["spark.scheduler.mode"] == "FAIR"
    assert properties["spark.speculation"] == "false"


def test_properties_when_the_driver_runs_the_tasks_then_one_that_lacks_memory_does_not_end_it() -> None:
    key = "spark.executor.killOnFatalError.depth"
    without = [master for master in (*LOCAL, *CLUSTERS) if key not in spark_properties(master, {}, SCRATCH)]
    assert without == ["local-cluster[2,1,1024]", *CLUSTERS]


def test_properties_when_the_driver_runs_the_tasks_then_unix_sockets_are_in_its_own_directory() -> None:
    """Executors on other machines do not have the directory. `test_sockets` examines the sockets themselves."""
    prefix = "spark.python.unix.domain.socket."

    def sockets(master: str, scratch: Path) -> dict[str, str]:
        properties = spark_properties(master, {}, scratch)
        return {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}

    assert not any(sockets(master, SCRATCH) for master in ("local-cluster[2,1,1024]", *CLUSTERS))
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        longest = Path(parent) / ("x" * (61 - len(f"{parent}/")))
        too_long = [longest.with_name(f"{longest.name}x"), longest.with_name(f"{longest.name[1:]}ü")]
        for path in (longest, *too_long):
            path.mkdir()
        expected = {"enabled": "true", "dir": str(longest)} if HAS_UNIX_SOCKETS else {}
        assert all(sockets(master, longest) == expected for master in ("local", "local[2]", "local[*]", "local[4,2]"))
        assert list(longest.iterdir()) == []
        expected = {"enabled": "false"} if HAS_UNIX_SOCKETS else {}
        without_sockets = Path("/proc/self")  # as with some file systems of networks, where files can be created
        assert [sockets("local[2]", path) for path in (*too_long, without_sockets)] == [expected] * 3


@pytest.mark.parametrize("master", [*LOCAL, *CLUSTERS])
def test_properties_when_the_user_sets_one_then_it_overrides_the_default(master: str) -> None:
    own = {"spark.driver.host": "10.0.0.1", "spark.driver.memory": "2g", "spark.x": "y"}
    assert spark_properties(master, own, SCRATCH).items() >= own.items()


def test_properties_when_the_user_sets_java_options_then_the_temporary_directory_is_kept() -> None:
    options = "spark.driver.extraJavaOptions"
    assert spark_properties("yarn", {options: "-Xss4m"}, SCRATCH)[options] == f'"-Djava.io.tmpdir={SCRATCH}" -Xss4m'
    assert "-XX:+UseSerialGC" in spark_properties("yarn", {}, SCRATCH)[options]


def test_properties_text_when_values_have_special_characters_then_they_are_escaped() -> None:
    assert properties_text({"spark.x": "a b\n", "spark.y": "ü=😀"}) == (
        "spark.x=a\\u0020b\\u000a\nspark.y=\\u00fc\\u003d\\ud83d\\ude00\n"
    )
