// Half and bfloat16, alone, in pairs and in matrices. tools/gen_ptx.py makes the .ptx beside it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define EACH(name, T, expression)                                                                 \
    extern "C" __global__ void name(const T *xs, const T *ys, T *out, int n) {                    \
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { \
            T x = xs[i], y = ys[i];                                                               \
            out[i] = (expression);                                                                \
        }                                                                                         \
    }

EACH(half_sums, __half, x + y * __float2half(0.5f))
EACH(half_quotients, __half, x / y)
EACH(half_fused, __half, __hfma_relu(x, y, x))
EACH(half_limits, __half, __hmin(__hmax(x, y), __float2half(2.f)))
EACH(half_signs, __half, __habs(x) - __hneg(y))
EACH(half_roots, __half, hsqrt(__habs(x)) + hrcp(y))
EACH(half_choices, __half, __hlt(x, y) ? x : y)
EACH(pair_sums, __half2, __hadd2(x, __hmul2(y, y)))
EACH(pair_fused, __half2, __hfma2(x, y, y))
EACH(pair_masks, __half2, __hlt2(x, y))
EACH(pair_saturated, __half2, __hadd2_sat(x, y))
EACH(brain_sums, __nv_bfloat16, x + y)
EACH(brain_fused, __nv_bfloat16, __hfma(x, y, x))
EACH(brain_limits, __nv_bfloat16, __hmax(x, __hmin(y, __float2bfloat16(1.f))))
EACH(brain_pairs, __nv_bfloat162, __hfma2(x, y, __hneg2(x)))

extern "C" {

// From floats and back.
__global__ void rounded(const float *xs, const float *ys, float *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        __half2 pair = __floats2half2_rn(xs[i], ys[i]);
        __nv_bfloat162 brain = __floats2bfloat162_rn(xs[i], ys[i]);
        out[i] = __low2float(pair) + __high2float(pair) * 2.f + __low2float(brain) * 4.f +
                 __half2float(__float2half_rz(xs[i])) + __half2float(__float2half_ru(ys[i])) +
                 (float)__half2int_rn(__low2half(pair));
    }
}

__global__ void half_totals(const __half *xs, __half *total, __half2 *totals, __nv_bfloat16 *brain, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(total, xs[i]);
        atomicAdd(totals, __half2half2(xs[i]));
        atomicAdd(brain, __float2bfloat16(__half2float(xs[i])));
    }
}

// C = A B for 16x16 times 16x8, by tensor cores, a warp a product.
__global__ void tensor_product(const __half *a, const __half *b, float *c) {
    __shared__ __align__(16) __half left[16 * 16], right[16 * 8];
    int lane = threadIdx.x & 31;
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        left[i] = a[blockIdx.x * 256 + i];
    for (int i = threadIdx.x; i < 128; i += blockDim.x)
        right[i] = b[blockIdx.x * 128 + i];
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    unsigned row = __cvta_generic_to_shared(&left[(lane & 15) * 16 + lane / 16 * 8]);
    unsigned column = __cvta_generic_to_shared(&right[(lane & 15) * 8]);
    unsigned x0, x1, x2, x3, y0, y1;
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3) : "r"(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(y0), "=r"(y1) : "r"(column));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
                 : "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(y0), "r"(y1));
    float *out = c + blockIdx.x * 128 + lane / 4 * 8 + lane % 4 * 2;
    out[0] = s0;
    out[1] = s1;
    out[64] = s2;
    out[65] = s3;
}

} // extern "C"
