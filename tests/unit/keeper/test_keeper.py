"""The keeper: who may have a session's memory, and that nothing else loses it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.keeper import HolderProcess, keeper_pid, keeper_pids, running
from helpers.server_process import assert_eventually

from outlast.errors import KeeperError
from outlast.server.keeper.client import Keeper
from outlast.server.keeper.holdings import MOST_BEGINNINGS
from outlast.server.keeper.messages import FDS_PER_MESSAGE

Start = Callable[[], HolderProcess]
CHUNK = [0, 0x1000_0000_0000, 32 << 20]


def test_the_next_holder_gets_the_memory_of_the_dead_one(keeper: Keeper, holder: Start) -> None:
    first = holder()
    assert first.ask("claim", "train", 1) == ["", False, []]
    assert first.ask("add", "train", 1, CHUNK, "weights") is None
    assert first.ask("note", "page") == 4
    assert first.ask("seal", "train", 1, "manifest") is None
    first.kill()
    second = holder()
    assert second.ask("claim", "train", 2) == ["page", True, [[*CHUNK, "weights"]]]
    assert second.ask("manifest") == "manifest"


def test_nobody_gets_memory_whose_holder_lives(keeper: Keeper, holder: Start) -> None:
    first, second = holder(), holder()
    first.ask("claim", "train", 1)
    assert second.ask("claim", "train", 2) == "refused: held"
    os.kill(first.process.pid, 19)  # SIGSTOP: silent is not dead
    assert second.ask("claim", "train", 2) == "refused: held"
    os.kill(first.process.pid, 18)
    first.kill()
    assert second.ask("claim", "train", 2) == ["", False, []]


def test_lower_and_used_tokens_are_refused(keeper: Keeper, holder: Start) -> None:
    first = holder()
    first.ask("claim", "train", 7)
    assert first.ask("claim", "train", 7) == ["", False, []]  # asked again, the same
    assert first.ask("claim", "train", 8) == "refused: invalid"
    first.ask("seal", "train", 7, "manifest")
    first.kill()
    second = holder()
    assert second.ask("claim", "train", 6) == "refused: fenced"
    assert second.ask("claim", "train", 7) == "refused: fenced"
    assert second.ask("end", "train", 6) == "refused: fenced"
    assert second.ask("claim", "train", 8) == ["", True, []]


def test_only_the_holder_changes_what_is_held(keeper: Keeper, holder: Start) -> None:
    first, second = holder(), holder()
    first.ask("claim", "train", 1)
    first.ask("add", "train", 1, CHUNK, "x")
    for request in (
        ("add", "train", 1, [0, 1, 2], "y"),
        ("drop", "train", 1, *CHUNK[:2]),
        ("seal", "train", 1, "m"),
        ("unseal", "train", 1),
    ):
        assert second.ask(*request) == "refused: fenced"
    assert keeper.holdings()[0]["chunks"] == 1


def test_what_changes_after_a_seal_breaks_it(keeper: Keeper, holder: Start) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    for change in (("add", "train", 1, CHUNK, "x"), ("drop", "train", 1, *CHUNK[:2])):
        process.ask("seal", "train", 1, "manifest")
        assert keeper.holdings()[0]["sealed"]
        assert process.ask(*change) is None
        assert not keeper.holdings()[0]["sealed"]
    process.ask("seal", "train", 1, "manifest")
    process.ask("unseal", "train", 1)
    assert not keeper.holdings()[0]["sealed"]


MARK = 0x0123456789ABCDEF


def test_a_seal_holds_while_the_page_says_so(keeper: Keeper, holder: Start) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    assert process.ask("rest", "train", 1, 0, "manifest") == "refused: invalid"
    assert process.ask("rest", "train", 1, MARK, "manifest") is None
    states = []
    for mark in (0, MARK, MARK + 1, MARK, 0):
        process.ask("mark", mark)
        (entry,) = keeper.holdings()
        states.append((entry["sealed"], entry["outdated"]))
    assert states == [(mark == MARK, mark != MARK) for mark in (0, MARK, MARK + 1, MARK, 0)]
    process.ask("rest", "train", 1, MARK + 2, "manifest")
    process.ask("mark", MARK)  # of the seal before
    assert not keeper.holdings()[0]["sealed"]


def test_memory_at_rest_is_for_the_next_holder(keeper: Keeper, holder: Start) -> None:
    first = holder()
    first.ask("claim", "train", 1)
    first.ask("add", "train", 1, CHUNK, "weights")
    first.ask("rest", "train", 1, MARK, "manifest")
    first.ask("mark", MARK)
    first.kill()
    second = holder()
    _, sealed, chunks = second.ask("claim", "train", 2)
    assert (sealed, chunks) == (True, [[*CHUNK, "weights"]])
    assert second.ask("manifest") == "manifest"
    # It is as it was, until the new holder says that it is not.
    assert keeper.holdings()[0]["sealed"]
    second.ask("mark", 0)
    second.kill()
    assert holder().ask("claim", "train", 3) == ["", False, []]


def test_a_seal_for_good_is_good_until_the_next_holder_changes_something(
    keeper: Keeper, holder: Start
) -> None:
    first, second = holder(), holder()
    first.ask("claim", "train", 1)
    first.ask("seal", "train", 1, "manifest")
    first.ask("mark", 0)
    assert keeper.holdings()[0]["sealed"]
    first.kill()
    assert second.ask("claim", "train", 2)[1]
    assert keeper.holdings()[0]["sealed"]
    second.ask("mark", 0)
    assert not keeper.holdings()[0]["sealed"]


@pytest.mark.parametrize("sealed", [False, True])
def test_memory_that_was_changing_is_given_back_when_its_holder_dies(
    keeper: Keeper, holder: Start, state: Path, sealed: bool
) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    process.ask("add", "train", 1, CHUNK, "x")
    if sealed:
        process.ask("rest", "train", 1, MARK, "manifest")
        process.ask("mark", MARK)
        process.ask("mark", 0)
    assert open_chunks(keeper_pid(state)) == 1
    process.kill()
    # By itself: whoever needs the memory does not know of this session.
    assert_eventually(lambda: not open_chunks(keeper_pid(state)), "it is given back", 5)
    assert keeper.holdings() == []


def test_a_seal_from_which_all_holders_die_is_not_tried_for_ever(
    keeper: Keeper, holder: Start
) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    process.ask("rest", "train", 1, MARK, "manifest")
    process.ask("mark", MARK)
    process.kill()
    found = []
    for token in range(2, 8):
        process = holder()
        found.append(process.ask("claim", "train", token)[1])
        process.kill()
    assert found == [True] * MOST_BEGINNINGS + [False] * (6 - MOST_BEGINNINGS)


def test_a_holder_that_seals_anew_may_be_followed_as_often_again(
    keeper: Keeper, holder: Start
) -> None:
    for token in range(1, 8):
        process = holder()
        assert process.ask("claim", "train", token)[1] is (token > 1)
        process.ask("rest", "train", token, MARK + token, "manifest")
        process.ask("mark", MARK + token)
        process.kill()


def test_a_chunk_is_held_once_and_dropped_once(keeper: Keeper, holder: Start) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    assert process.ask("add", "train", 1, CHUNK, "x") is None
    assert process.ask("add", "train", 1, CHUNK, "x") == "refused: invalid"
    assert process.ask("drop", "train", 1, *CHUNK[:2]) is None
    assert process.ask("drop", "train", 1, *CHUNK[:2]) == "refused: unknown"
    assert process.ask("add", "other", 1, CHUNK, "x") == "refused: unknown"


def test_more_chunks_than_one_message_carries(keeper: Keeper, holder: Start) -> None:
    first = holder()
    first.ask("claim", "train", 1)
    count = 3 * FDS_PER_MESSAGE
    for number in range(count):
        assert first.ask("add", "train", 1, [0, number << 21, 2 << 20], str(number)) is None
    assert keeper.holdings()[0]["bytes"] == count * (2 << 20)
    first.ask("seal", "train", 1, "manifest")
    first.kill()
    second = holder()
    _, _, chunks = second.ask("claim", "train", 2)
    assert chunks == [[0, number << 21, 2 << 20, str(number)] for number in range(count)]


def test_an_ended_session_is_given_back(keeper: Keeper, holder: Start, state: Path) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    process.ask("add", "train", 1, CHUNK, "x")
    held = open_chunks(keeper_pid(state))
    assert keeper.end("train", 1)
    assert held == 1
    assert open_chunks(keeper_pid(state)) == 0
    assert not keeper.holdings()
    assert not keeper.end("train", 1)


def open_chunks(pid: int) -> int:
    """Return how many of our chunks a process holds open."""
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return sum("memfd:chunk" in link for link in links)


def test_memory_that_nobody_claims_is_given_back_in_the_end(state: Path, holder: Start) -> None:
    keeper = Keeper(state)
    keeper.start(ttl=0.5)
    process = holder()
    for session in ("train", "other"):
        process.ask("claim", session, 1)
        process.ask("seal", session, 1, "manifest")
    time.sleep(1.2)  # longer than its life without a holder: it has one
    assert len(keeper.holdings()) == 2
    process.kill()
    assert_eventually(lambda: not keeper.holdings(), "nothing is held", 5)
    keeper.close()


def test_the_next_server_says_how_long_a_running_keeper_keeps(
    state: Path, keeper: Keeper, holder: Start
) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    process.ask("seal", "train", 1, "manifest")
    process.kill()
    assert keeper.holdings()
    pid = keeper_pid(state)
    second = Keeper(state)
    second.start(ttl=0.1)  # the first one said a minute
    assert_eventually(lambda: not keeper.holdings(), "nothing is held", 5)
    assert keeper_pid(state) == pid
    second.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_one_whose_socket_is_gone_gives_everything_back_and_ends(
    state: Path, keeper: Keeper, holder: Start, replaced: bool
) -> None:
    """Nobody can reach it, and it would stand in the way of another."""
    holder().ask("claim", "train", 1)
    pid = keeper_pid(state)
    socket = state / "keeper.sock"
    socket.unlink()
    if replaced:
        socket.write_text("something else")
    assert_eventually(lambda: not keeper_pids(state), "it ends", 5)
    keeper.close()
    keeper.start(60.0)
    assert keeper.holdings() == []
    assert keeper_pid(state) != pid


def test_it_outlives_whoever_started_it(state: Path, holder: Start) -> None:
    program = (
        "import sys; from pathlib import Path; from outlast.server.keeper.client import Keeper;"
        "Keeper(Path(sys.argv[1])).start(60.0)"
    )
    subprocess.run([sys.executable, "-c", program, str(state)], check=True, timeout=20)
    pid = keeper_pid(state)
    process = holder()
    process.ask("claim", "train", 1)
    process.ask("seal", "train", 1, "manifest")
    for number in (15, 2, 1):  # as a whole process group gets them
        os.kill(pid, number)
    process.kill()
    assert [held["session"] for held in reconnected(state)] == ["train"]
    assert os.getsid(pid) != os.getsid(0)


def reconnected(state: Path) -> list[dict[str, object]]:
    """Return what a new connection sees."""
    keeper = Keeper(state)
    try:
        return keeper.holdings()
    finally:
        keeper.close()


def test_two_keepers_of_one_folder_are_one(state: Path, keeper: Keeper) -> None:
    pid = keeper_pid(state)
    command = [sys.executable, "-m", "outlast.server.keeper", "--socket"]
    command += [str(state / "keeper.sock"), "--ttl", "1", "--idle", "1"]
    subprocess.run(command, check=True, timeout=20)
    assert keeper.holdings() == []
    assert_eventually(lambda: keeper_pids(state) == [pid], "one is left", 5)


def test_a_killed_keeper_is_replaced_and_its_memory_is_gone(
    state: Path, keeper: Keeper, holder: Start
) -> None:
    process = holder()
    process.ask("claim", "train", 1)
    os.kill(keeper_pid(state), 9)
    with pytest.raises(KeeperError, match="keeper"):
        keeper.holdings()
    assert_eventually(lambda: not running(state), "it is gone", 5)
    keeper.start(60.0)
    assert keeper.holdings() == []


def test_a_keeper_with_nothing_to_keep_ends(state: Path) -> None:
    command = [sys.executable, "-m", "outlast.server.keeper", "--socket"]
    command += [str(state / "keeper.sock"), "--ttl", "1", "--idle", "0.2"]
    subprocess.run(command, check=True, timeout=20)
    assert_eventually(lambda: not keeper_pids(state), "it ends", 10)


@pytest.mark.parametrize(
    "data",
    [
        *(b"no json", b"[]", b"{}", b'{"op":"claim"}', b"\xff" * 70000),
        *(b'{"op":"claim","session":"","token":1}', b'{"op":"claim","session":"x","token":-1}'),
        b'{"op":"claim","session":"x","token":true}',
        *(b'{"op":"list","more_fds":-3}', b'{"op":"list","start":"x"}'),
        *(b'{"op":"keep","seconds":0}', b'{"op":"keep"}'),
    ],
)
def test_bad_messages_are_refused_and_the_keeper_goes_on(
    state: Path, keeper: Keeper, data: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.settimeout(5)
        raw.connect(str(state / "keeper.sock"))
        raw.send(data)
        answer = raw.recv(4096)
    assert answer == b"" or b'"error":"invalid"' in answer
    assert keeper.holdings() == []


def test_who_does_not_finish_a_message_does_not_stop_the_others(
    state: Path, keeper: Keeper
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.connect(str(state / "keeper.sock"))
        raw.send(b'{"op":"list","start":0,"more_fds":5}')
        assert keeper.holdings() == []  # after a moment, within its own deadline


def test_its_socket_is_for_its_user_alone(state: Path, keeper: Keeper) -> None:
    assert (state / "keeper.sock").stat().st_mode & 0o777 == 0o600


def test_its_folder_may_have_a_name_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    keeper = Keeper(deep)
    keeper.start(1.0)
    assert keeper.holdings() == []
    keeper.close()
    os.kill(keeper_pid(deep), 9)


def test_without_a_keeper_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeeperError, match="no keeper runs") as caught:
        Keeper(tmp_path).connect()
    assert caught.value.reason == "unreachable"


def test_it_needs_the_standard_library_alone() -> None:
    program = (
        "import sys; import outlast.server.keeper.service, outlast.server.keeper.__main__;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "- set(sys.stdlib_module_names)))"
    )
    run = [sys.executable, "-c", program]
    output = subprocess.run(run, check=True, capture_output=True, text=True, timeout=20).stdout
    found = {name for name in eval(output) if not name.startswith(("_", "sitecustomize"))}
    assert found - {"distutils-precedence"} == {"outlast"}
