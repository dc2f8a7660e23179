"""Errors have one code each, a text of their own and typed fields."""

from __future__ import annotations

import inspect

import pytest

from outlast import errors
from outlast._generated import cuda_enums
from outlast.errors import OutlastError, by_code

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, OutlastError) and cls.__module__ == errors.__name__
]
ON_THE_WIRE = [cls for cls in CLASSES if cls.code]


def test_wire_codes_and_classes_map_one_to_one():
    codes = [cls.code for cls in ON_THE_WIRE]
    assert len(codes) == len(set(codes))
    assert {code: by_code(code) for code in codes} == {cls.code: cls for cls in ON_THE_WIRE}


def test_an_unknown_code_is_a_plain_outlast_error():
    assert by_code(0xFFFF) is OutlastError


def test_codes_fit_their_field_on_the_wire():
    assert all(0 < cls.code < 1 << 16 for cls in ON_THE_WIRE)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_says_what_it_is_without_a_message(cls):
    first_line = (cls.__dict__["__doc__"] or "").strip().splitlines()[0]
    assert first_line.endswith(".")
    assert str(cls()) == first_line


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_ends_a_cuda_call_with_a_result_that_cuda_has(cls):
    assert cls.cu_result in {int(member) for member in cuda_enums.CUresult}
    assert cls.cu_result != 0


def test_fields_are_attributes():
    error = errors.SessionBusy("busy", session_id="train", generation=4)
    assert (error.session_id, error.generation) == ("train", 4)
    assert error.fields == {"session_id": "train", "generation": 4}


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.ProtocolError, ValueError),
        (errors.SessionNotFound, LookupError),
        (errors.ProviderNotFound, LookupError),
        (errors.AuthenticationFailed, PermissionError),
        (errors.ServerUnreachable, ConnectionError),
        (errors.LinkClosed, ConnectionError),
        (errors.LinkTimeout, TimeoutError),
    ],
)
def test_an_error_is_also_the_builtin_that_callers_know(cls, builtin):
    assert issubclass(cls, builtin)
    assert isinstance(cls("gone"), builtin)
