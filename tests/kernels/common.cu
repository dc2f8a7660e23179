// Kernels that programs are made of. The .ptx beside it is checked in; after a change run
//   nvcc -arch=compute_80 -ptx common.cu -o common.ptx
#include <cstdio>

#define TILE 16

extern "C" {

__global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

__global__ void saxpy(float alpha, const float *x, float *y, int n) {
    int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        y[i] = alpha * x[i] + y[i];
}

__global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][TILE];
    __shared__ float right[TILE][TILE];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * TILE + ty, column = blockIdx.x * TILE + tx;
    float sum = 0;
    for (int tile = 0; tile < (n + TILE - 1) / TILE; tile++) {
        int across = tile * TILE + tx, down = tile * TILE + ty;
        left[ty][tx] = row < n && across < n ? a[row * n + across] : 0.f;
        right[ty][tx] = down < n && column < n ? b[down * n + column] : 0.f;
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += left[ty][k] * right[k][tx];
        __syncthreads();
    }
    if (row < n && column < n)
        c[row * n + column] = sum;
}

__device__ float warp_sum(float value) {
    for (int offset = 16; offset; offset >>= 1)
        value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

__device__ float warp_max(float value) {
    for (int offset = 16; offset; offset >>= 1)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

__global__ void block_reduce(const float *x, float *out, int n) {
    __shared__ float partial[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float value = warp_sum(i < n ? x[i] : 0.f);
    if (lane == 0)
        partial[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = warp_sum(lane < (blockDim.x + 31) / 32 ? partial[lane] : 0.f);
        if (lane == 0)
            atomicAdd(out, value);
    }
}

// Row-wise; a block for each row, one float of dynamic shared memory for each warp.
__global__ void softmax(const float *x, float *y, int columns) {
    extern __shared__ float partial[];
    const float *in = x + (size_t)blockIdx.x * columns;
    float *out = y + (size_t)blockIdx.x * columns;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) / 32;
    float largest = -__int_as_float(0x7f800000);
    for (int j = threadIdx.x; j < columns; j += blockDim.x)
        largest = fmaxf(largest, in[j]);
    largest = warp_max(largest);
    if (lane == 0)
        partial[warp] = largest;
    __syncthreads();
    largest = partial[0];
    for (int k = 1; k < warps; k++)
        largest = fmaxf(largest, partial[k]);
    __syncthreads();
    float sum = 0;
    for (int j = threadIdx.x; j < columns; j += blockDim.x) {
        float power = __expf(in[j] - largest);
        out[j] = power;
        sum += power;
    }
    sum = warp_sum(sum);
    if (lane == 0)
        partial[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < warps; k++)
        sum += partial[k];
    float scale = 1.f / sum;
    for (int j = threadIdx.x; j < columns; j += blockDim.x)
        out[j] *= scale;
}

__global__ void adamw(float *p, const float *g, float *m, float *v, float rate, float beta1,
                      float beta2, float epsilon, float decay, int step, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float gradient = g[i], value = p[i] * (1.f - rate * decay);
    float first = m[i] = beta1 * m[i] + (1.f - beta1) * gradient;
    float second = v[i] = beta2 * v[i] + (1.f - beta2) * gradient * gradient;
    float scale1 = 1.f - powf(beta1, (float)step), scale2 = 1.f - powf(beta2, (float)step);
    p[i] = value - rate * (first / scale1) / (sqrtf(second / scale2) + epsilon);
}

__global__ void histogram(const unsigned char *x, unsigned *counts, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i])
            atomicAdd(&counts[i], local[i]);
}

__global__ void heat(const float *a, float *b, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x > 0 && y > 0 && x < width - 1 && y < height - 1) {
        const float *here = a + y * width + x;
        float around = here[-1] + here[1] + here[-width] + here[width] - 4.f * here[0];
        b[y * width + x] = here[0] + 0.1f * around;
    }
}

__global__ void hello(int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        printf("hello from %d of %d: %f %s 0x%llx\n", i, n, i * 0.5, "text",
               (unsigned long long)i << 40);
}

__device__ unsigned long long counter = 5;
__constant__ float coefficients[4];

__global__ void use_globals(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = coefficients[i & 3] * sinf((float)i) + cosf(y[i]);
        atomicAdd(&counter, 1ull);
    }
}

__global__ void write_far(float *y) { y[threadIdx.x + (1ll << 36)] = 1.f; }

__global__ void write_misaligned(char *y) { *(volatile int *)(y + 2) = 1; }

__global__ void overrun_shared(float *y, int i) {
    __shared__ float few[32];
    few[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = few[i];
}

__global__ void stop_here() { asm volatile("trap;"); }

// Runs until the flag is set, which nothing does: only cancelling ends it.
__global__ void spin(const int *flag) {
    while (*(const volatile int *)flag == 0) {
    }
}

// The same with a barrier in the loop.
__global__ void spin_together(const int *flag) {
    while (*(const volatile int *)flag == 0)
        __syncthreads();
}

__global__ void store(int *target, int value) { *target = value; }

// Doubles a value so that lost or reordered launches show.
__global__ void append_digit(unsigned long long *target, unsigned digit) {
    *target = *target * 10 + digit;
}

} // extern "C"
