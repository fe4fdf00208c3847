import logging
import subprocess
import sys
import zipfile

import pytest

from airflow_kafka_offsets.errors import SetupError
from airflow_kafka_offsets.local import cache as cache_module
from airflow_kafka_offsets.local import jars as module
from airflow_kafka_offsets.local.cache import cache_directory
from airflow_kafka_offsets.local.jars import (
    kafka_classpath,
    listing_file,
    read_listing,
    write_listing,
)
from airflow_kafka_offsets.local.kafka import EmbeddedKafka


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    """The directory of the jars, which is not there yet."""
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


@pytest.fixture
def cache(directory):
    """The directory with two jars and their listing."""
    jars = [directory / "repository/a/a-1.jar", directory / "repository/with space/b-2.jar"]
    for jar in jars:
        jar.parent.mkdir(parents=True)
        jar.write_bytes(b"jar of " + jar.name.encode())
    write_listing(listing_file(), jars)
    return directory


@pytest.fixture
def without_jgo(monkeypatch):
    for name in ("jgo", "jgo.config", "jgo.maven"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def dead_network(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://user:geheim@127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_jars_that_are_there_need_neither_jgo_nor_network(cache, without_jgo):
    assert kafka_classpath() == [
        cache / "repository/a/a-1.jar",
        cache / "repository/with space/b-2.jar",
    ]


def test_the_listing_moves_with_its_directory(cache, tmp_path, monkeypatch):
    cache.parent.rename(tmp_path / "moved")
    monkeypatch.setenv("AIRFLOW_KAFKA_OFFSETS_CACHE", str(tmp_path / "moved"))
    assert kafka_classpath()[0] == tmp_path / "moved/jars/repository/a/a-1.jar"


@pytest.mark.parametrize("damage", ["cut off", "missing"])
def test_a_jar_that_is_not_whole_makes_the_listing_void(cache, damage):
    jar = cache / "repository/a/a-1.jar"
    if damage == "missing":
        jar.unlink()
    else:
        jar.write_bytes(b"ja")
    assert read_listing(listing_file()) is None


@pytest.mark.parametrize("text", ["", "no size\n", "12\n", "\0"])
def test_a_listing_that_makes_no_sense_is_void(cache, text):
    listing_file().write_text(text)
    assert read_listing(listing_file()) is None


def test_missing_jgo_is_said_with_the_command_that_installs_it(without_jgo):
    with pytest.raises(
        SetupError, match=r"jgo.*is not installed: pip install 'airflow-kafka-offsets\[demo\]'"
    ):
        kafka_classpath()


def test_an_unreachable_registry_is_said_with_a_remedy_and_without_credentials(
    tmp_path, dead_network, caplog
):
    caplog.set_level(logging.INFO, module.log.name)
    with pytest.raises(SetupError, match=r"could not be fetched \(ProxyError.*check the network") as refused:
        EmbeddedKafka(tmp_path / "kafka").start()
    assert "geheim" not in str(refused.value)
    assert "://" not in str(refused.value)
    assert caplog.messages == ["fetching Apache Kafka 4.1.0 (about 45 MB, once)"]


def test_what_a_killed_process_left_half_written_is_fetched_again(directory, dead_network):
    repository = directory / "repository"
    repository.mkdir(parents=True)
    (repository / "half.jar").write_bytes(b"PK\x03\x04 and no end")
    (repository / "half.pom").write_text("<project><modelVersion>4.0")
    (repository / "whole.pom").write_text("<project/>\n")
    with zipfile.ZipFile(repository / "whole.jar", "w") as jar:
        jar.writestr("a.txt", "a")
    with pytest.raises(SetupError):
        kafka_classpath()
    assert sorted(path.name for path in repository.iterdir() if path.is_file()) == ["whole.jar", "whole.pom"]


def test_a_directory_that_cannot_be_made_is_said_with_a_remedy(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(SetupError, match="name another directory in AIRFLOW_KAFKA_OFFSETS_CACHE"):
        kafka_classpath()


def test_two_processes_do_not_fetch_at_once(cache, monkeypatch):
    """The second one waits for the first, and then finds what that one fetched."""
    hold = (
        "import sys; from pathlib import Path\n"
        "from airflow_kafka_offsets.local.cache import lock_file\n"
        "with lock_file(Path(sys.argv[1]), 'fetching', 5): print('held', flush=True); sys.stdin.read()\n"
    )
    listing = listing_file()
    draft = listing.rename(cache / "aside")
    first = subprocess.Popen(
        [sys.executable, "-c", hold, str(cache / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout
    first.stdout.readline()

    def waiting(text, doing):
        assert text % doing == "waiting for another process that is fetching Kafka's jars"
        draft.rename(listing)
        first.communicate()

    monkeypatch.setattr(cache_module.log, "info", waiting)
    assert len(kafka_classpath()) == 2


def test_a_download_that_takes_forever_is_ended(monkeypatch):
    monkeypatch.setattr(module, "_TIME_LIMIT", -1.0)
    report = module._reporter()
    with report("a.jar", 10) as update, pytest.raises(TimeoutError, match="not complete"):
        update(1)


def test_large_files_are_reported_when_their_download_begins(caplog):
    caplog.set_level(logging.INFO, module.log.name)
    report = module._reporter()
    with report("scala-library.jar", 5_900_000):
        assert caplog.messages == ["fetching scala-library.jar (6 MB)"]
    with report("scala-library.pom", 5_900):
        pass
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "HOME/.cache/airflow-kafka-offsets"),
        ({"XDG_CACHE_HOME": "/var/cache/me"}, "/var/cache/me/airflow-kafka-offsets"),
        # A relative path is ignored, as XDG's specification says.
        ({"XDG_CACHE_HOME": "cache"}, "HOME/.cache/airflow-kafka-offsets"),
        ({"XDG_CACHE_HOME": "/var/cache/me", "AIRFLOW_KAFKA_OFFSETS_CACHE": "here"}, "HOME/here"),
    ],
)
def test_the_cache_is_where_the_platform_or_a_variable_says(monkeypatch, tmp_path, variables, expected):
    for name in ("AIRFLOW_KAFKA_OFFSETS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert str(cache_directory()) == expected.replace("HOME", str(tmp_path))
