"""The load reply's description of a module."""

from __future__ import annotations

import json

from outlast.errors import ProtocolError
from outlast.shim.objects import KernelInfo


def parse_module_info(
    info: bytes,
) -> tuple[dict[str, KernelInfo], dict[str, tuple[int, int]]]:
    """Return a module's kernels and its variables' (address, size), by name.

    Raises
    ------
    ProtocolError
        The description is not what the server must send.
    """
    try:
        table = json.loads(info)
        kernels = {row["name"]: _kernel(row) for row in table["functions"]}
        variables = {
            row["name"]: (int(row["address"]), int(row["size"])) for row in table["globals"]
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the description of a module cannot be read: {error}") from error
    return kernels, variables


def _kernel(row: dict[str, object]) -> KernelInfo:
    parameters, attributes = row["parameters"], row["attributes"]
    if not isinstance(parameters, list) or not isinstance(attributes, dict):
        raise TypeError("parameters or attributes have the wrong type")
    return KernelInfo(
        str(row["name"]),
        tuple((int(offset), int(size)) for offset, size in parameters),
        {int(key): int(value) for key, value in attributes.items()},
    )
