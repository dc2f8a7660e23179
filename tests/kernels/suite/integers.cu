// Integer arithmetic, an element at a time. tools/gen_ptx.py makes the .ptx beside it.

typedef unsigned long long u64;

#define EACH(name, T, R, expression)                                                              \
    extern "C" __global__ void name(const T *xs, const T *ys, R *out, int n) {                    \
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { \
            T x = xs[i], y = ys[i];                                                               \
            out[i] = (expression);                                                                \
        }                                                                                         \
    }

__device__ unsigned scramble(unsigned x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

__device__ unsigned common_divisor(unsigned x, unsigned y) {
    while (y) {
        unsigned rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

__device__ unsigned checksum(unsigned x) {
    unsigned sum = ~0u;
    for (int byte = 0; byte < 4; byte++) {
        sum ^= x >> 8 * byte & 0xff;
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    return ~sum;
}

__device__ int collatz(unsigned x) {
    int steps = 0;
    for (u64 v = x % 1000 + 1; v != 1; steps++)
        v = v & 1 ? 3 * v + 1 : v / 2;
    return steps;
}

__device__ unsigned whole_root(unsigned x) {
    unsigned root = 0;
    for (unsigned bit = 1u << 15; bit; bit >>= 1)
        if ((u64)(root | bit) * (root | bit) <= x)
            root |= bit;
    return root;
}

__device__ bool is_prime(unsigned x) {
    if (x < 2)
        return false;
    for (unsigned d = 2; d * d <= x; d++)
        if (x % d == 0)
            return false;
    return true;
}

__device__ unsigned next_random(unsigned x, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    return x;
}

__device__ unsigned days(unsigned kind) {
    switch (kind) {
    case 0: case 2: case 4: case 6: case 7: case 9: case 11: return 31;
    case 1: return 28;
    case 3: case 5: case 8: case 10: return 30;
    default: return 0;
    }
}

EACH(hashes, unsigned, unsigned, scramble(x) + scramble(y))
EACH(divisors, unsigned, unsigned, common_divisor(x, y))
EACH(checksums, unsigned, unsigned, checksum(x))
EACH(collatz_steps, unsigned, int, collatz(x))
EACH(whole_roots, unsigned, unsigned, whole_root(x))
EACH(primes, unsigned, int, is_prime(x % 5000))
EACH(randoms, unsigned, unsigned, next_random(x | 1, y % 20))
EACH(months, unsigned, unsigned, days(x % 13) * 100 + days(y % 13))
EACH(counts, unsigned, unsigned, __popc(x) + 100 * __clz(y) + 10000 * __ffs(x))
EACH(reversed, unsigned, unsigned, __brev(x) ^ __byte_perm(x, y, 0x6420))
EACH(high_parts, unsigned, unsigned, __umulhi(x, y) + (unsigned)__mulhi((int)x, (int)y))
EACH(short_parts, unsigned, unsigned, __umul24(x, y) ^ (unsigned)__mul24((int)x, (int)y))
EACH(funnels, unsigned, unsigned, __funnelshift_l(x, y, x & 31) ^ __funnelshift_rc(x, y, y & 63))
EACH(dot_bytes, unsigned, int, __dp4a((int)x, (int)y, 7))
EACH(dot_halves, unsigned, unsigned, __dp2a_lo(x, y, 1u) + __dp2a_hi(x, y, 2u))
EACH(differences, unsigned, unsigned, __usad(x, y, 3u) + (unsigned)__sad((int)x, (int)y, 4u))
EACH(averages, unsigned, unsigned, __uhadd(x, y) ^ __urhadd(x, y) ^ (unsigned)__hadd((int)x, (int)y))
EACH(quotients, unsigned, unsigned, x / (y | 1) * 3 + x % (y | 1))
EACH(signed_quotients, int, int, x / (y | 1) + x % (y | 1) * 5)
EACH(shifts, int, int, (x >> (y & 31)) ^ (x << (y & 15)) ^ (int)((unsigned)x >> (y & 7)))
EACH(bytes, unsigned, unsigned, __vadd4(x, y) ^ __vabsdiffu4(x, y) ^ __vmaxs2(x, y) ^ __vcmpeq4(x, y))
EACH(long_quotients, u64, u64, x / (y | 1) + x % (y | 1))
EACH(long_products, u64, u64, __umul64hi(x, y) ^ x * y)
EACH(long_bits, u64, u64, __brevll(x) + __popcll(y) + ((u64)__clzll(y) << 32) + (x >> (y & 63)))
EACH(signed_longs, long long, long long, x / (y | 1) - x % (y | 1) + __mul64hi(x, y))

// A product of 128 bits added to another one: carries through four words.
extern "C" __global__ void wide_sums(const u64 *xs, const u64 *ys, u64 *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned __int128 x = xs[i], y = ys[i];
        unsigned __int128 sum = x * y + (x << 64 | y) - (y << 32);
        out[2 * i] = (u64)sum;
        out[2 * i + 1] = (u64)(sum >> 64);
    }
}

// Where each value would be in a sorted table.
extern "C" __global__ void search(const unsigned *xs, const unsigned *table, int *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int low = 0, high = n;
        while (low < high) {
            int middle = (low + high) / 2;
            if (table[middle] < xs[i])
                low = middle + 1;
            else
                high = middle;
        }
        out[i] = low;
    }
}
