// One kernel for each part of the language. The .ptx beside it is checked in; after a change run
//   nvcc -arch=compute_80 -std=c++17 -ptx language.cu -o language.ptx
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

template <int N> __device__ __noinline__ float polynomial(const float *c, float x) {
    float sum = 0;
    for (int i = N - 1; i >= 0; i--)
        sum = sum * x + c[i];
    return sum;
}

__device__ __noinline__ float block_sum(float value, float *shared) {
    int t = threadIdx.x;
    shared[t] = value;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half >>= 1) {
        if (t < half)
            shared[t] += shared[t + half];
        __syncthreads();
    }
    float sum = shared[0];
    __syncthreads();
    return sum;
}

struct Node {
    Node *next;
    int value;
};

struct Table {
    float values[8];
    int count;
};

extern "C" {

__global__ void call_function(const float *c, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = polynomial<5>(c, x[i]);
}

__global__ void barrier_in_function(const float *x, float *y) {
    __shared__ float shared[256];
    float first = block_sum(x[blockIdx.x * blockDim.x + threadIdx.x], shared);
    float second = block_sum(first + threadIdx.x, shared);
    if (threadIdx.x == 0)
        y[blockIdx.x] = second;
}

__global__ void tile_sum(const int *x, int *y) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int value = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int offset = tile.size() / 2; offset; offset /= 2)
        value += tile.shfl_down(value, offset);
    if (tile.thread_rank() == 0)
        y[(blockIdx.x * blockDim.x + threadIdx.x) / 8] = value;
}

__global__ void votes(const int *x, unsigned *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned ballot = __ballot_sync(~0u, x[i] > 0);
    int all = __all_sync(~0u, x[i] > -100), any = __any_sync(~0u, x[i] > 1000);
    if ((threadIdx.x & 31) == 0)
        y[i / 32] = ballot;
    if (i == 0) {
        y[n] = all;
        y[n + 1] = any;
        y[n + 2] = __popc(ballot);
        y[n + 3] = __ffs(ballot);
        y[n + 4] = __clz(ballot);
        y[n + 5] = __brev(ballot);
    }
}

__global__ void small_floats(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = __half2float(__float2half(x[i])) * 2.f + __bfloat162float(__float2bfloat16(x[i]));
}

__global__ void double_functions(const double *x, double *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = exp(sin(x[i])) * sqrt(fabs(x[i])) + pow(x[i], 3.0) + log1p(x[i]) + erf(x[i]);
}

__global__ void single_functions(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = expf(x[i]) + logf(x[i] + 1) + tanhf(x[i]) + sinf(x[i]) + rsqrtf(x[i] + 1);
}

__global__ void switch_case(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, result;
    if (i >= n)
        return;
    switch (x[i]) {
    case 0: result = i * 3; break;
    case 1: result = i - 7; break;
    case 2: result = i ^ 0x55; break;
    case 3: result = i * i; break;
    case 4: result = ~i; break;
    case 5: result = i / 3; break;
    case 6: result = i % 7; break;
    case 7: result = (unsigned)i >> 2; break;
    default: result = -1;
    }
    y[i] = result;
}

__global__ void wide_integers(const unsigned long long *x, unsigned long long *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long v = x[i];
    unsigned long long turned = (v << (i & 63)) | (v >> ((64 - i) & 63));
    y[i] = __umul64hi(v, v * 3) + v / 7 + v % 13 + __brevll(v) + __popcll(v) + __clzll(v) + turned;
}

__global__ void local_array(const int *x, float *y, int n) {
    float table[16];
    for (int k = 0; k < 16; k++)
        table[k] = k * k * 0.5f;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = table[x[i] & 15];
}

__global__ void spin_lock(int *lock, int *count) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *count = *count + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

__global__ void atomics(const float *x, int *largest, double *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicMax(largest, __float_as_int(x[i]));
        atomicAdd(sum, (double)x[i]);
    }
}

__global__ void scan(const int *x, int *y) {
    __shared__ int shared[256];
    int t = threadIdx.x;
    shared[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int offset = 1; offset < 256; offset <<= 1) {
        int before = t >= offset ? shared[t - offset] : 0;
        __syncthreads();
        shared[t] += before;
        __syncthreads();
    }
    y[blockIdx.x * 256 + t] = shared[t];
}

__global__ void make_list(Node *nodes, int count) {
    int i = threadIdx.x;
    if (i < count) {
        nodes[i].value = i * i;
        nodes[i].next = i + 1 < count ? &nodes[i + 1] : nullptr;
    }
}

__global__ void sum_list(Node *node, int *out) {
    int sum = 0;
    for (; node; node = node->next)
        sum += node->value;
    *out = sum;
}

__global__ void by_value(Table table, float *y) {
    y[threadIdx.x] = table.values[threadIdx.x % table.count];
}

__global__ void geometry(unsigned *out) {
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

__global__ void __launch_bounds__(64) bounded(int *out) { out[threadIdx.x] = threadIdx.x; }

} // extern "C"
