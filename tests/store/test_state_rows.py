"""The rows of a bucket, as the state views have them: changed ones in memory, others in RocksDB."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.views.database import Checkpoint, Database
from store.views.state import State

CHANGES = st.lists(
    st.tuples(st.sampled_from([b"s\0\1a", b"s\0\1b"]), st.binary(max_size=2), st.booleans()), max_size=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rounds=st.lists(CHANGES, max_size=4))
def test_all_rows_of_a_bucket_are_those_that_a_scan_finds(tmp_path_factory, rounds):
    path: Path = tmp_path_factory.mktemp("views")
    database = Database(path, 1 << 20)
    state = State(database)
    expected: dict[bytes, dict[bytes, bytes]] = {b"s\0\1a": {}, b"s\0\1b": {}}
    for number, changes in enumerate(rounds):
        for bucket, name, is_there in changes:
            if is_there:
                state.put(bucket, name, b"%d" % number)
                expected[bucket][name] = b"%d" % number
            else:
                state.delete(bucket, name)
                expected[bucket].pop(name, None)
            for each, rows in expected.items():
                assert state.all(each) == list(state.scan(each)) == sorted(rows.items())
        batch = database.batch()
        state.drain(batch)
        database.write(batch, Checkpoint(number, number, 0))
        state.forget()
    for each, rows in expected.items():
        assert state.all(each) == sorted(rows.items())
    database.close()
