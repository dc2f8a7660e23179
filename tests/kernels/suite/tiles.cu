// D = A B + C by a warp, of every shape and type of wmma. tools/gen_ptx.py makes the .ptx beside it.
#include <mma.h>

using namespace nvcuda::wmma;

#define TILE(name, M, N, K, T, S, R, ROWS_A, ROWS_B, ROWS_C, SATURATE)                             \
    extern "C" __global__ void name(const S *a, const S *b, const R *c, R *d) {                   \
        fragment<matrix_a, M, N, K, T, ROWS_A> left;                                              \
        fragment<matrix_b, M, N, K, T, ROWS_B> right;                                             \
        fragment<accumulator, M, N, K, R> sum;                                                    \
        bool rows_a = by_rows<ROWS_A>(), rows_b = by_rows<ROWS_B>();                              \
        load_matrix_sync(left, a + blockIdx.x * M * K, rows_a ? K : M);                           \
        load_matrix_sync(right, b + blockIdx.x * K * N, rows_b ? N : K);                          \
        load_matrix_sync(sum, c + blockIdx.x * M * N, ROWS_C == mem_row_major ? N : M, ROWS_C);   \
        mma_sync(sum, left, right, sum SATURATE);                                                 \
        for (int i = 0; i < sum.num_elements; i++)                                                \
            sum.x[i] = sum.x[i] + sum.x[i];                                                       \
        store_matrix_sync(d + blockIdx.x * M * N, sum, ROWS_C == mem_row_major ? N : M, ROWS_C);  \
    }

template <typename T> __device__ constexpr bool by_rows() { return false; }
template <> __device__ constexpr bool by_rows<row_major>() { return true; }

#define NOTHING
#define SATURATED , true

TILE(halves, 16, 16, 16, __half, __half, float, row_major, col_major, mem_row_major, NOTHING)
TILE(half_sums, 32, 8, 16, __half, __half, __half, col_major, row_major, mem_col_major, NOTHING)
TILE(brains, 8, 32, 16, __nv_bfloat16, __nv_bfloat16, float, row_major, row_major, mem_col_major, NOTHING)
TILE(singles, 16, 16, 8, precision::tf32, float, float, col_major, col_major, mem_row_major, NOTHING)
TILE(doubles, 8, 8, 4, double, double, double, row_major, row_major, mem_row_major, NOTHING)
TILE(bytes, 16, 16, 16, signed char, signed char, int, row_major, col_major, mem_row_major, NOTHING)
TILE(clamped, 32, 8, 16, unsigned char, unsigned char, int, row_major, row_major, mem_col_major, SATURATED)
TILE(wide_bytes, 8, 32, 16, unsigned char, unsigned char, int, col_major, col_major, mem_row_major, NOTHING)

// The same by way of shared memory, in two steps along the inner dimension.
extern "C" __global__ void shared_halves(const __half *a, const __half *b, const float *c, float *d) {
    __shared__ __align__(32) __half tiles[2][16 * 16];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        tiles[0][i] = a[blockIdx.x * 256 + i];
        tiles[1][i] = b[blockIdx.x * 256 + i];
    }
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    fragment<matrix_a, 16, 16, 16, __half, row_major> left;
    fragment<matrix_b, 16, 16, 16, __half, col_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    load_matrix_sync(sum, c + blockIdx.x * 256, 16, mem_row_major);
    load_matrix_sync(left, tiles[0], 16);
    load_matrix_sync(right, tiles[1], 16);
    for (int step = 0; step < 2; step++)
        mma_sync(sum, left, right, sum);
    store_matrix_sync(d + blockIdx.x * 256, sum, 16, mem_row_major);
}
