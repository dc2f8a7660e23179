"""Functions: kernels in a context. What is asked of them is answered from the load's reply."""

from __future__ import annotations

from typing import Any

from outlast.cuda_types import (
    CUfunc_cache,
    CUfunction_attribute,
    CUfunctionLoadingState,
    CUresult,
    CUsharedconfig,
)
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import require
from outlast.shim.handles import CUmodule, as_int
from outlast.shim.libraries import any_function, set_attribute

__all__ = [
    "cuFuncGetAttribute",
    "cuFuncGetModule",
    "cuFuncGetName",
    "cuFuncGetParamCount",
    "cuFuncGetParamInfo",
    "cuFuncIsLoaded",
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuFuncSetSharedMemConfig",
]

#: Attributes that cuFuncSetAttribute may change.
_SETTABLE = (
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    CUfunction_attribute.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
)


@api(outputs=1)
def cuFuncGetAttribute(attrib: CUfunction_attribute, hfunc: Any) -> tuple[CUresult, int]:
    """Return an attribute of a kernel."""
    attributes = any_function(client(), hfunc).attributes
    require(int(attrib) in attributes)
    return SUCCESS, attributes[int(attrib)]


@api()
def cuFuncSetAttribute(hfunc: Any, attrib: CUfunction_attribute, value: int) -> tuple[CUresult]:
    """Set an attribute of a kernel."""
    me = client()
    me.enter()
    function = any_function(me, hfunc)
    check_setting(attrib, value)
    set_attribute(me, function, int(attrib), int(value))
    return OK


@api()
def cuFuncSetCacheConfig(hfunc: Any, config: CUfunc_cache) -> tuple[CUresult]:
    """Prefer a division of on-chip memory: a wish, which changes nothing here."""
    me = client()
    me.enter()
    any_function(me, hfunc)
    require(as_int(config) in list(CUfunc_cache))
    return OK


@api(outputs=2)
def cuFuncGetParamInfo(func: Any, paramIndex: int) -> tuple[CUresult, int, int]:
    """Return offset and size of a kernel's parameter."""
    parameters = any_function(client(), func).info.parameters
    require(0 <= paramIndex < len(parameters))
    return SUCCESS, *parameters[paramIndex]


@api(outputs=1)
def cuFuncGetParamCount(func: Any) -> tuple[CUresult, int]:
    """Return how many parameters a kernel has."""
    return SUCCESS, len(any_function(client(), func).info.parameters)


@api()
def cuFuncSetSharedMemConfig(hfunc: Any, config: CUsharedconfig) -> tuple[CUresult]:
    """Prefer a width of shared memory's banks: no device of today has another."""
    me = client()
    me.enter()
    any_function(me, hfunc)
    require(as_int(config) in list(CUsharedconfig))
    return OK


@api(outputs=1)
def cuFuncGetName(hfunc: Any) -> tuple[CUresult, bytes]:
    """Return a kernel's name."""
    return SUCCESS, any_function(client(), hfunc).info.name.encode()


@api(outputs=1)
def cuFuncGetModule(hfunc: Any) -> tuple[CUresult, CUmodule]:
    """Return the module that a function is of."""
    return SUCCESS, CUmodule(any_function(client(), hfunc).module.handle)


@api(outputs=1)
def cuFuncIsLoaded(function: Any) -> tuple[CUresult, CUfunctionLoadingState]:
    """Return whether a function is loaded: all are, with their module."""
    any_function(client(), function)
    return SUCCESS, CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED


@api()
def cuFuncLoad(function: Any) -> tuple[CUresult]:
    """Load a function: it is loaded, with its module."""
    any_function(client(), function)
    return OK


def check_setting(attribute: Any, value: int) -> None:
    """Refuse an attribute that cannot be set, and a value that no attribute has."""
    require(attribute in _SETTABLE)
    require(-(1 << 31) <= value < 1 << 31)
