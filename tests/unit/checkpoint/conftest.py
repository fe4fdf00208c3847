import pytest
from checkpoint_moves import apply_plan, begun, checkpoint, files, three  # noqa: F401
from fsspec.implementations.memory import MemoryFileSystem

from airflow_kafka_offsets.errors import PlanRefusedError


@pytest.fixture(scope="session")
def storage_options():
    """What fsspec needs for an S3 server on the loopback, with the bucket lake in it."""
    s3fs = pytest.importorskip("s3fs")
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": f"http://{host}:{port}",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    try:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="lake")
        yield options
    finally:
        server.stop()


@pytest.fixture
def assert_refused():
    """assert_refused(root, plan, *texts): it has these refusals and no others, and nothing is written."""

    def check(root, checkpoint_plan, *says):
        before = files(root)
        with pytest.raises(PlanRefusedError) as refused:
            apply_plan(root, checkpoint_plan)
        assert len(refused.value.refusals) == len(says), refused.value.refusals
        for text, refusal in zip(says, refused.value.refusals, strict=True):
            assert text in refusal
        assert files(root) == before

    return check


@pytest.fixture
def memory():
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
