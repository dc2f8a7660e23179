// Functions that are called through their addresses, which programs keep in device memory. The
// .ptx beside it is checked in; after a change run
//   nvcc -arch=compute_80 -ptx calls.cu -o calls.ptx

typedef unsigned (*Function)(unsigned);

extern "C" {

__device__ __noinline__ unsigned twice(unsigned x) {
    return 2 * x;
}

__device__ __noinline__ unsigned thrice(unsigned x) {
    return 3 * x + 1;
}

// The addresses are put in here when the module is loaded.
__device__ Function table[2] = {twice, thrice};
// Nobody outside can name this one.
static __device__ unsigned calls = 0;

// Stores what a program would store.
__global__ void keep(Function *functions) {
    functions[0] = twice;
    functions[1] = thrice;
}

__global__ void call(const Function *functions, unsigned *out, unsigned x) {
    for (int i = 0; i < 2; i++)
        out[i] = functions[i](x);
    out[2] = ++calls;
}

__global__ void call_table(unsigned *out, unsigned x) {
    for (int i = 0; i < 2; i++)
        out[i] = table[i](x);
}

} // extern "C"
