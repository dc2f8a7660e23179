"""What a native driver library offers, and how its functions take and give values.

A line: the name in `cuda.bindings.driver`, then the parameters in C's order. Numbers in: ``i`` and
``u`` (32 bits), ``z`` (64 bits and pointers), ``s`` (text). Numbers out, by pointer: ``>i``,
``>z``, ``>f`` (float), ``>s`` (a text that stays).
"""

from __future__ import annotations

TABLE = """
cuInit u
cuDriverGetVersion >i
cuGetErrorName i >s
cuGetErrorString i >s
cuDeviceGet >i i
cuDeviceGetCount >i
cuDeviceTotalMem >z i
cuDeviceGetAttribute >i i i
cuDevicePrimaryCtxRetain >z i
cuDevicePrimaryCtxRelease i
cuDevicePrimaryCtxReset i
cuDevicePrimaryCtxGetState i >i >i
cuDevicePrimaryCtxSetFlags i u
cuCtxDestroy z
cuCtxPushCurrent z
cuCtxPopCurrent >z
cuCtxSetCurrent z
cuCtxGetCurrent >z
cuCtxGetDevice >i
cuCtxGetFlags >i
cuCtxSynchronize
cuCtxGetLimit >z i
cuCtxSetLimit i z
cuCtxGetStreamPriorityRange >i >i
cuModuleLoadData >z z
cuModuleUnload z
cuModuleGetFunction >z z s
cuModuleGetGlobal >z >z z s
cuModuleGetLoadingMode >i
cuLibraryLoadData >z z z z u z z u
cuLibraryUnload z
cuLibraryGetKernel >z z s
cuLibraryGetModule >z z
cuLibraryGetGlobal >z >z z s
cuLibraryGetKernelCount >i z
cuKernelGetFunction >z z
cuKernelGetAttribute >i i z i
cuKernelSetAttribute i i z i
cuKernelGetParamInfo z z >z >z
cuLinkCreate u z z >z
cuLinkAddData z i z z s u z z
cuLinkComplete z >z >z
cuLinkDestroy z
cuFuncGetAttribute >i i z
cuFuncSetAttribute z i i
cuFuncGetParamInfo z z >z >z
cuFuncGetModule >z z
cuOccupancyMaxActiveBlocksPerMultiprocessor >i z i z
cuOccupancyAvailableDynamicSMemPerBlock >z z i i
cuMemGetInfo >z >z
cuMemAlloc >z z
cuMemFree z
cuMemGetAddressRange >z >z z
cuMemAllocAsync >z z z
cuMemFreeAsync z z
cuMemAllocFromPoolAsync >z z z z
cuDeviceGetDefaultMemPool >z i
cuDeviceGetMemPool >z i
cuDeviceSetMemPool i z
cuMemPoolDestroy z
cuMemPoolTrimTo z z
cuMemHostAlloc >z z u
cuMemFreeHost z
cuMemcpyHtoD z z z
cuMemcpyDtoH z z z
cuMemcpyDtoD z z z
cuMemcpyHtoDAsync z z z z
cuMemcpyDtoHAsync z z z z
cuMemcpyDtoDAsync z z z z
cuMemcpy z z z
cuMemcpyAsync z z z z
cuMemsetD8 z u z
cuMemsetD16 z u z
cuMemsetD32 z u z
cuMemsetD8Async z u z z
cuMemsetD32Async z u z z
cuStreamCreate >z u
cuStreamCreateWithPriority >z u i
cuStreamDestroy z
cuStreamSynchronize z
cuStreamQuery z
cuStreamWaitEvent z z u
cuStreamGetFlags z >i
cuStreamGetPriority z >i
cuStreamIsCapturing z >i
cuEventCreate >z u
cuEventDestroy z
cuEventRecord z z
cuEventQuery z
cuEventSynchronize z
cuEventElapsedTime >f z z
cuLaunchKernel z u u u u u u u z z z
cuLaunchCooperativeKernel z u u u u u u u z z
cuLaunchHostFunc z z z
cuStreamAddCallback z z z u
cuStreamGetCtx z >z
cuStreamGetId z >z
cuCtxGetId z >z
cuCtxGetApiVersion z >i
cuCtxGetCacheConfig >i
cuCtxSetCacheConfig i
cuDeviceComputeCapability >i >i i
cuDeviceCanAccessPeer >i i i
cuCtxEnablePeerAccess z u
cuCtxDisablePeerAccess z
cuMemcpyPeer z z z z z
cuMemcpyPeerAsync z z z z z z
cuMemsetD16Async z u z z
cuMemsetD2D8 z z u z z
cuMemsetD2D16 z z u z z
cuMemsetD2D32 z z u z z
cuMemAllocPitch >z >z z z u
cuMemAllocHost >z z
cuMemHostRegister z z u
cuMemHostUnregister z
cuMemHostGetDevicePointer >z z u
cuMemHostGetFlags >i z
cuFuncGetName >s z
cuFuncSetCacheConfig z i
cuKernelGetName >s z
cuKernelGetLibrary >z z
cuModuleGetFunctionCount >i z
cuProfilerStart
cuProfilerStop
"""

#: Functions by name, with the kinds of their parameters.
FUNCTIONS = {line.split()[0]: line.split()[1:] for line in TABLE.strip().splitlines()}
#: Those that take or give more than numbers, with how many parameters they have.
SPECIAL = {
    "cuCtxCreate": 4,
    "cuCtxCreate_v2": 3,
    "cuDeviceGetName": 3,
    "cuDeviceGetUuid": 2,
    "cuLaunchKernelEx": 4,
    "cuMemPoolGetAttribute": 3,
    "cuMemPoolSetAttribute": 3,
}
#: The C library looks functions up by these endings too.
ENDINGS = ("", "_v2", "_v3", "_v4", "_ptsz")
