// Integer kernels whose results numpy predicts bit for bit. The .ptx beside it is checked in;
// after a change run
//   nvcc -arch=compute_80 -ptx mixing.cu -o mixing.ptx

extern "C" {

__device__ unsigned passes;

// Neither idempotent nor commutative: a repeated, lost or reordered launch shows for ever.
__global__ void stir(unsigned *words, unsigned count, unsigned salt) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = words[i] * 1664525u + 1013904223u + (salt ^ i);
}

// Words of one buffer go into another in a strange order.
__global__ void weave(unsigned *target, const unsigned *source, unsigned count, unsigned step) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        target[i] = (target[i] << 1 | target[i] >> 31) ^ source[(unsigned)(i * step) % count];
}

// The sum of all words is added to one: atomics of integers commute.
__global__ void tally(const unsigned *words, unsigned count, unsigned *sum) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        atomicAdd(sum, words[i]);
}

// A variable of the module changes with every launch, by one thread.
__global__ void pass(unsigned salt) {
    if (threadIdx.x == 0)
        passes = passes * 31u + salt;
}

} // extern "C"
