"""Bounds of the explorations: small enough to be exhaustive, each about one kind of trouble."""

from __future__ import annotations

from model.parts import Bounds

#: Explored completely in every run.
SMALL = {
    "a link breaks among answered, failing, reading and asking calls": Bounds(
        {"A": (("alloc", "one"), ("bad", "read"), ("ask",))}, {"break": 1}, 1
    ),
    "a worker dies while the end of some work is awaited": Bounds(
        {"A": (("read", "watch"), ("one",))}, {"break": 1, "crash": 1, "epoch": 1}, 2
    ),
    "a device fails while the end of some work is awaited": Bounds(
        {"A": (("read", "watch"), ("one",))}, {"poison": 1, "break": 1}, 2, recovers=True
    ),
    "a link breaks twice": Bounds({"A": (("alloc", "bad"),)}, {"break": 2}, 2),
    "the window lets one batch go at a time": Bounds(
        {"A": (("alloc", "one"), ("ask",), ("read",))}, {"break": 1, "crash": 1}, 2, window=1
    ),
    "link and worker end around an epoch": Bounds(
        {"A": (("bad",), ("read",))}, {"break": 1, "crash": 1, "epoch": 1}, 2
    ),
    "an epoch turns out corrupt, another fails": Bounds(
        {"A": (("bad", "alloc"), ("one",))}, {"crash": 1, "corrupt": 1, "epoch": 2, "fail": 1}, 3
    ),
    "every epoch turns out corrupt": Bounds(
        {"A": (("bad",), ("alloc",))}, {"crash": 1, "corrupt": 2, "epoch": 2}, 3
    ),
    "gateway and worker crash twice": Bounds(
        {"A": (("bad", "alloc"), ("one",))}, {"crash_all": 2, "epoch": 2}, 2
    ),
    "another server takes over from a slow one": Bounds(
        {"A": (("alloc",), ("bad",))}, {"takeover": 1, "break": 1}, 2, late_frames=True
    ),
    "a client dies and another adopts": Bounds(
        {"A": (("alloc", "bad"),), "B": (("alloc",),)}, {"die": 1, "crash": 1, "epoch": 1}, 2
    ),
    "a silent client is replaced and comes back": Bounds(
        {"A": (("alloc",), ("bad",)), "B": (("alloc",),)}, {"break": 1}, 1, late_frames=True
    ),
    "an adopter loses its server and its epoch": Bounds(
        {"A": (("bad",),), "B": (("alloc",),)}, {"break": 1, "crash": 1, "corrupt": 1}, 3
    ),
    "an adoption does not reach the journal": Bounds(
        {"A": (("alloc", "bad"),), "B": (("alloc",),)}, {"unrecorded": 1, "break": 1, "crash": 1}, 2
    ),
    "a batch is applied in part": Bounds(
        {"A": (("alloc", "bad", "one"), ("read",))}, {"stumble": 1, "crash": 1}, 2
    ),
    "a device fails once, without recovery": Bounds(
        {"A": (("alloc", "one"), ("read", "ask"))}, {"poison": 1, "break": 1}, 2
    ),
    "a device fails once, and a link breaks": Bounds(
        {"A": (("alloc", "bad"), ("read", "ask"))}, {"poison": 1, "break": 1}, 2, recovers=True
    ),
    "a device fails once, and a worker dies": Bounds(
        {"A": (("alloc", "one"), ("read",))},
        {"poison": 1, "crash": 1, "epoch": 1},
        2,
        recovers=True,
    ),
    "a device fails twice": Bounds(
        {"A": (("alloc", "one"), ("read", "ask"))}, {"poison": 2, "epoch": 1}, 2, recovers=True
    ),
    "a lease lapses for a moment": Bounds({"A": (("alloc", "bad"), ("ask",))}, {"lapse": 1}, 1),
}

#: Explored as far as the soak's bound on states allows.
LARGE = {
    "one client, everything but corruption": Bounds(
        {"A": (("bad", "alloc"), ("read",), ("one", "ask"))},
        {"break": 2, "crash": 1, "crash_all": 1, "takeover": 1, "epoch": 2, "fail": 1},
        3,
        late_frames=True,
    ),
    "one client, corrupt epochs": Bounds(
        {"A": (("bad",), ("alloc",), ("read",))},
        {"break": 1, "crash": 2, "corrupt": 2, "epoch": 3},
        4,
    ),
    "two clients": Bounds(
        {"A": (("alloc", "bad"), ("read",)), "B": (("alloc",), ("bad",))},
        {"break": 2, "crash": 1, "takeover": 1, "die": 1, "epoch": 1, "unrecorded": 1},
        3,
        late_frames=True,
    ),
    "one client, a narrow window and a lapsing lease": Bounds(
        {"A": (("alloc", "one"), ("ask",), ("read", "bad"))},
        {"break": 2, "crash": 1, "lapse": 1, "stumble": 1, "epoch": 1},
        3,
        window=1,
    ),
}
