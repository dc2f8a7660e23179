// Calls, recursion, tables of functions, objects. tools/gen_ptx.py makes the .ptx beside it.

#define EACH(name, expression)                                                                    \
    extern "C" __global__ void name(const int *xs, int *out, int n) {                             \
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { \
            int x = xs[i];                                                                        \
            out[i] = (expression);                                                                \
        }                                                                                         \
    }

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__device__ __noinline__ int ackermann(int m, int n) {
    if (m == 0)
        return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

__device__ __noinline__ void quicksort(int *values, int low, int high) {
    if (low >= high)
        return;
    int pivot = values[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (values[i] < pivot)
            i++;
        while (values[j] > pivot)
            j--;
        if (i <= j) {
            int kept = values[i];
            values[i++] = values[j];
            values[j--] = kept;
        }
    }
    quicksort(values, low, j);
    quicksort(values, i, high);
}

// The seventh smallest of twelve numbers.
__device__ int selected(int x) {
    int values[12];
    for (int i = 0; i < 12; i++)
        values[i] = (x * (i * 7 + 3)) % 101;
    quicksort(values, 0, 11);
    return values[6];
}

__device__ __noinline__ int queens(int n, int columns, int left, int right) {
    int all = (1 << n) - 1, count = 0;
    if (columns == all)
        return 1;
    for (int free = all & ~(columns | left | right); free; free &= free - 1) {
        int bit = free & -free;
        count += queens(n, columns | bit, (left | bit) << 1, (right | bit) >> 1);
    }
    return count;
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int added(int x, int y) { return x + y; }
__device__ __noinline__ int multiplied(int x, int y) { return x * y; }
__device__ __noinline__ int smaller(int x, int y) { return x < y ? x : y; }
__device__ Operation operations[] = {added, multiplied, smaller};

struct Shape {
    __device__ virtual int area() const = 0;
    __device__ virtual int corners() const { return 0; }
};
struct Square : Shape {
    int side;
    __device__ Square(int side) : side(side) {}
    __device__ int area() const override { return side * side; }
    __device__ int corners() const override { return 4; }
};
struct Strip : Shape {
    int length;
    __device__ Strip(int length) : length(length) {}
    __device__ int area() const override { return 2 * length; }
};

__device__ __noinline__ int measure(const Shape *shape) { return shape->area() * 10 + shape->corners(); }

__device__ int measured(int x) {
    Square square(x % 9);
    Strip strip(x % 7);
    return measure(x & 1 ? static_cast<const Shape *>(&square) : &strip);
}

struct Pair {
    long long first;
    int second;
    char third;
};
__device__ __noinline__ Pair advanced(Pair pair, int step) {
    return {pair.first + step, pair.second * 2, (char)(pair.third ^ step)};
}
__device__ int paired(int x) {
    Pair pair = {x, x + 1, (char)x};
    for (int i = 0; i < 3; i++)
        pair = advanced(pair, i + x % 5);
    return (int)pair.first + pair.second * 7 + pair.third;
}

template <typename F> __device__ int folded(int n, F function) {
    int total = 0;
    for (int i = 0; i < n; i++)
        total = function(total, i);
    return total;
}

// Jumps into the middle of loops.
__device__ int tangled(int x) {
    int steps = 0, value = x;
    if (x & 1)
        goto second;
first:
    value = value / 2 + 3;
    if (++steps > 40)
        return value;
second:
    value = value * 3 - 7;
    if (++steps > 40)
        return value;
    if (value & 4)
        goto first;
    value ^= steps;
    if (value & 2)
        goto second;
    return value * 100 + steps;
}

EACH(fibonaccis, fibonacci(x % 12))
EACH(ackermanns, ackermann(x % 3, x % 4))
EACH(selections, selected(x))
EACH(queens_counts, queens(4 + x % 3, 0, 0, 0))
EACH(chosen, operations[x % 3](x, 7) + operations[(x + 1) % 3](3, x))
EACH(objects, measured(x))
EACH(structures, paired(x))
EACH(lambdas, folded(x % 20, [=](int a, int b) { return a * 3 + b * x; }))
EACH(jumps, tangled(x))

// A barrier and a shuffle at each level of a recursion.
__device__ __noinline__ int descend(int depth, int value, int *cells) {
    if (depth == 0)
        return value;
    cells[threadIdx.x] = value;
    __syncthreads();
    int other = cells[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    return descend(depth - 1, value + other, cells) - depth;
}

extern "C" __global__ void descended(const int *xs, int *out, int depth) {
    __shared__ int cells[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = descend(depth, xs[i], cells);
}
