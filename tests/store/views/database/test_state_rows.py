"""The rows of a table, as the state views have them: changed ones in memory, others in RocksDB."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.views.database.database import Checkpoint, Database
from store.views.database.state import State

CHANGES = st.lists(
    st.tuples(st.sampled_from([b"s\0\1a", b"s\0\1b"]), st.binary(max_size=2), st.booleans()), max_size=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rounds=st.lists(CHANGES, max_size=4))
def test_rows_are_those_that_were_put_however_they_are_asked_for(tmp_path_factory, rounds):
    path: Path = tmp_path_factory.mktemp("views")
    database = Database(path, 1 << 20)
    state = State(database)
    expected: dict[bytes, dict[bytes, bytes]] = {b"s\0\1a": {}, b"s\0\1b": {}}
    for number, changes in enumerate(rounds):
        for table, name, is_there in changes:
            if is_there:
                state.put(table, name, b"%d" % number)
                expected[table][name] = b"%d" % number
            else:
                state.delete(table, name)
                expected[table].pop(name, None)
            for each, rows in expected.items():
                assert state.all(each) == list(state.scan(each)) == sorted(rows.items())
            assert state.get(table, name) == expected[table].get(name)
        batch = database.batch()
        state.drain(batch)
        database.write(batch, Checkpoint(number, number, 0))
        state.forget()
        for table, name, _ in changes:  # what was read before the write is not what is read now
            assert state.get(table, name) == expected[table].get(name)
    for each, rows in expected.items():
        assert state.all(each) == sorted(rows.items())
    database.close()


def test_few_and_small_rows_are_remembered(tmp_path: Path) -> None:
    database = Database(tmp_path, 1 << 20)
    batch = database.batch()
    batch.put(b"large", bytes(1000))
    batch.put(b"small", b"row")
    database.write(batch, Checkpoint(1, 1, 0))
    for _ in range(2):
        assert database.get(b"large") == bytes(1000)
        assert database.get(b"small") == b"row"
        assert database.get(b"none") is None
    assert database._read == {b"small": b"row", b"none": None}
    for number in range(5000):
        assert database.get(b"%d" % number) is None
    assert len(database._read) <= 4096
    database.close()
