// What threads of a block and of a warp do together. tools/gen_ptx.py makes the .ptx beside it.
// Blocks have at most 256 threads; each works on as many elements as it has threads.

#define FULL 0xffffffffu
#define HERE (blockIdx.x * blockDim.x + threadIdx.x)

typedef unsigned long long u64;

// The threads of this warp that exist.
__device__ unsigned present() {
    int rest = blockDim.x - (threadIdx.x & ~31);
    return rest >= 32 ? FULL : (1u << rest) - 1;
}

extern "C" {

__global__ void block_sums(const int *x, int *out) {
    __shared__ int sums[256];
    int t = threadIdx.x;
    sums[t] = x[HERE];
    __syncthreads();
    for (int size = blockDim.x; size > 1;) {
        int half = (size + 1) / 2;
        if (t + half < size)
            sums[t] += sums[t + half];
        size = half;
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = sums[0];
}

__global__ void warp_sums(const int *x, int *out) {
    int value = x[HERE], lane = threadIdx.x & 31, rest = blockDim.x - (threadIdx.x & ~31);
    unsigned mask = present();
    for (int offset = 16; offset; offset >>= 1) {
        int other = __shfl_down_sync(mask, value, offset);
        if (lane + offset < rest && lane + offset < 32)
            value += other;
    }
    out[HERE] = __shfl_sync(mask, value, 0);
}

__global__ void reduced(const int *x, int *out) {
    unsigned mask = present();
    int value = x[HERE];
    out[HERE] = __reduce_add_sync(mask, value) ^ __reduce_max_sync(mask, value) ^
                (int)__reduce_and_sync(mask, (unsigned)value) ^ (int)__reduce_xor_sync(mask, (unsigned)value);
}

__global__ void inclusive_scan(const int *x, int *out) {
    __shared__ int totals[8];
    int value = x[HERE], lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    unsigned mask = present();
    for (int offset = 1; offset < 32; offset <<= 1) {
        int other = __shfl_up_sync(mask, value, offset);
        if (lane >= offset)
            value += other;
    }
    if (lane == 31)
        totals[warp] = value;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        value += totals[i];
    out[HERE] = value;
}

__global__ void largest_places(const int *x, int *out) {
    __shared__ int places[256];
    int t = threadIdx.x;
    const int *own = x + blockIdx.x * blockDim.x;
    places[t] = t;
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2) {
        if (t % (2 * step) == 0 && t + step < blockDim.x && own[places[t + step]] > own[places[t]])
            places[t] = places[t + step];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = places[0];
}

__global__ void odd_even_sort(const int *x, int *out) {
    __shared__ int values[256];
    int t = threadIdx.x;
    values[t] = x[HERE];
    __syncthreads();
    for (int round = 0; round < blockDim.x; round++) {
        if ((t & 1) == (round & 1) && t + 1 < blockDim.x && values[t] > values[t + 1]) {
            int kept = values[t];
            values[t] = values[t + 1];
            values[t + 1] = kept;
        }
        __syncthreads();
    }
    out[HERE] = values[t];
}

__global__ void reversed(const int *x, int *out) {
    extern __shared__ int values[];
    values[threadIdx.x] = x[HERE];
    __syncthreads();
    out[HERE] = values[blockDim.x - 1 - threadIdx.x];
}

__global__ void counted(const int *x, int *out) {
    int value = x[HERE];
    int count = __syncthreads_count(value > 0);
    int all = __syncthreads_and(value > -100), any = __syncthreads_or(value > 99);
    out[HERE] = count * 4 + (all != 0) * 2 + (any != 0);
}

__global__ void voted(const int *x, int *out) {
    unsigned mask = present();
    int value = x[HERE];
    out[HERE] = __ballot_sync(mask, value > 0) ^ (__all_sync(mask, value > -90) << 7) ^
                (__any_sync(mask, value > 90) << 9);
}

__global__ void grouped(const int *x, int *out) {
    out[HERE] = __match_any_sync(present(), x[HERE] & 3);
}

__global__ void agreed(const int *x, int *out) {
    int same;
    unsigned found = __match_all_sync(present(), x[HERE] < 1000, &same);
    out[HERE] = found ^ same;
}

__global__ void compacted(const int *x, int *out, int *count) {
    int value = x[HERE];
    bool kept = value > 0;
    unsigned mask = present(), votes = __ballot_sync(mask, kept);
    int lane = threadIdx.x & 31, place = 0;
    if (lane == 0)
        place = atomicAdd(count, __popc(votes));
    place = __shfl_sync(mask, place, 0) + __popc(votes & ((1u << lane) - 1));
    if (kept)
        out[place] = value;
}

__global__ void neighbours(const int *x, int *out) {
    __shared__ int values[258];
    int t = threadIdx.x, n = gridDim.x * blockDim.x, i = HERE;
    values[t + 1] = x[i];
    if (t == 0)
        values[0] = i ? x[i - 1] : 0;
    if (t == blockDim.x - 1)
        values[t + 2] = i + 1 < n ? x[i + 1] : 0;
    __syncthreads();
    out[i] = values[t] - 2 * values[t + 1] + values[t + 2];
}

__global__ void tallied(const int *x, int *out) {
    __shared__ int counts[16];
    for (int i = threadIdx.x; i < 16; i += blockDim.x)
        counts[i] = 0;
    __syncthreads();
    atomicAdd(&counts[x[HERE] & 15], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 16; i += blockDim.x)
        atomicAdd(&out[i], counts[i]);
}

// Every atomic operation on integers, on cells of its own.
__global__ void atomics(const int *x, unsigned *cells, u64 *wide) {
    int value = x[HERE];
    atomicAdd((int *)&cells[0], value);
    atomicSub((int *)&cells[1], value);
    atomicMin((int *)&cells[2], value);
    atomicMax((int *)&cells[3], value);
    atomicMin(&cells[4], (unsigned)value);
    atomicMax(&cells[5], (unsigned)value);
    atomicAnd(&cells[6], (unsigned)value);
    atomicOr(&cells[7], (unsigned)value);
    atomicXor(&cells[8], (unsigned)value);
    atomicInc(&cells[9], 6u);
    atomicDec(&cells[10], 6u);
    atomicAdd((float *)&cells[11], (float)value);
    atomicAdd(&wide[0], (u64)value);
    atomicMin((long long *)&wide[1], (long long)value);
    atomicMax((long long *)&wide[2], (long long)value);
    atomicMin(&wide[3], (u64)value);
    atomicMax(&wide[4], (u64)value);
    atomicXor(&wide[5], (u64)value << 20);
    atomicAdd((double *)&wide[6], value * 0.5);
}

// A multiplication by compare-and-swap, of three widths.
__global__ void swapped(const int *x, unsigned *cell, u64 *wide, unsigned short *small) {
    unsigned factor = x[HERE] | 1, seen = *cell, tried;
    do {
        tried = seen;
        seen = atomicCAS(cell, tried, tried * factor);
    } while (seen != tried);
    u64 seen64 = *wide, tried64;
    do {
        tried64 = seen64;
        seen64 = atomicCAS(wide, tried64, tried64 * factor);
    } while (seen64 != tried64);
    unsigned short seen16 = *small, tried16;
    do {
        tried16 = seen16;
        seen16 = atomicCAS(small, tried16, (unsigned short)(tried16 * factor));
    } while (seen16 != tried16);
}

// The block that is last sums what the others have left.
__global__ void last_block(const int *x, int *partial, unsigned *arrived, int *out) {
    __shared__ bool last;
    atomicAdd(&partial[blockIdx.x], x[HERE]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < gridDim.x; i++)
            sum += ((volatile int *)partial)[i];
        *out = sum;
    }
}

// Copies that arrive later: two buffers, one filled while the other is summed.
__global__ void pipelined(const int *x, int *out, int rounds) {
    __shared__ __align__(16) int buffers[2][256];
    int t = threadIdx.x, sum = 0;
    const int *own = x + HERE;
    unsigned place[2] = {(unsigned)__cvta_generic_to_shared(&buffers[0][t]),
                         (unsigned)__cvta_generic_to_shared(&buffers[1][t])};
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place[0]), "l"(own) : "memory");
    asm volatile("cp.async.commit_group;");
    for (int round = 1; round <= rounds; round++) {
        int size = round < rounds ? 4 : 0;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place[round & 1]),
                     "l"(own + round * (int)(gridDim.x * blockDim.x)), "r"(size) : "memory");
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        sum += buffers[(round - 1) & 1][blockDim.x - 1 - t];
        __syncthreads();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[HERE] = sum + buffers[rounds & 1][t];
}

// One half of the block makes what the other takes, by barriers of their own.
__global__ void relayed(const int *x, int *out) {
    __shared__ int cells[256];
    int half = blockDim.x / 64 * 32, t = threadIdx.x;
    if (t < half) {
        cells[t] = x[HERE] * 3;
        asm volatile("barrier.arrive 1, %0;" ::"r"(2 * half) : "memory");
    } else if (t < 2 * half) {
        asm volatile("barrier.sync 1, %0;" ::"r"(2 * half) : "memory");
        out[HERE] = cells[t - half];
    }
}

__global__ void normalised(const float *x, float *out) {
    __shared__ float parts[256];
    int t = threadIdx.x;
    float value = x[HERE], results[2];
    for (int round = 0; round < 2; round++) {
        parts[t] = round ? (value - results[0]) * (value - results[0]) : value;
        __syncthreads();
        float sum = 0;
        for (int i = 0; i < blockDim.x; i++)
            sum += parts[i];
        results[round] = sum / blockDim.x;
        __syncthreads();
    }
    out[HERE] = (value - results[0]) * rsqrtf(results[1] + 1e-5f);
}

__global__ void log_sum_exp(const float *x, float *out) {
    __shared__ float parts[256];
    int t = threadIdx.x;
    parts[t] = x[HERE];
    __syncthreads();
    float largest = parts[0];
    for (int i = 1; i < blockDim.x; i++)
        largest = fmaxf(largest, parts[i]);
    float sum = 0;
    for (int i = 0; i < blockDim.x; i++)
        sum += __expf(parts[i] - largest);
    out[HERE] = x[HERE] - largest - __logf(sum);
}

// Rows of a matrix times a vector, a warp a row.
__global__ void matrix_vector(const float *matrix, const float *vector, float *out, int columns) {
    int warps = gridDim.x * ((blockDim.x + 31) / 32);
    int warp = blockIdx.x * ((blockDim.x + 31) / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    unsigned mask = present();
    int lanes = __popc(mask);
    for (int row = warp; row < 8; row += warps) {
        float sum = 0;
        for (int i = lane; i < columns; i += lanes)
            sum += matrix[row * columns + i] * vector[i];
        float total = 0;
        for (int i = 0; i < lanes; i++)
            total += __shfl_sync(mask, sum, i);
        if (lane == 0)
            out[row] = total;
    }
}

__global__ void transposed(const int *x, int *out) {
    __shared__ int tile[16][17];
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        tile[i / 16][i % 16] = x[blockIdx.x * 256 + i];
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        out[blockIdx.x * 256 + i] = tile[i % 16][i / 16];
}

__global__ void life(const int *x, int *out) {
    __shared__ int cells[16][16];
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        cells[i / 16][i % 16] = x[blockIdx.x * 256 + i] & 1;
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        int row = i / 16, column = i % 16, around = -cells[row][column];
        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++)
                around += cells[(row + dy) & 15][(column + dx) & 15];
        out[blockIdx.x * 256 + i] = around == 3 || (around == 2 && cells[row][column]);
    }
}

// What the hardware says of a thread's place.
__global__ void places(int *out) {
    unsigned lane, lower, warps, warp, shared;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
    asm("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm("mov.u32 %0, %%nctaid.x;" : "=r"(warps));
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared));
    out[HERE] = lane + 100 * __popc(lower) + 10000 * warp + 100000 * warps + shared;
}

// Threads of a warp take different ways and meet again in the middle of them.
__global__ void diverged(const int *x, int *out) {
    unsigned mask = present();
    int value = x[HERE], sum = 0;
    for (int i = 0; i < (value & 7); i++) {
        if (value & 8)
            sum += i * 3;
        else
            sum -= i;
        if (i == 5)
            break;
    }
    sum += __shfl_xor_sync(mask, sum, 1) * (((threadIdx.x ^ 1) < blockDim.x) ? 1 : 0);
    if (value & 1) {
        unsigned odd = __activemask();
        sum += __popc(odd) > 0 ? 1000 : 0;
    }
    __syncwarp(mask);
    out[HERE] = sum;
}

} // extern "C"
