// Floating-point functions, an element at a time. tools/gen_ptx.py makes the .ptx beside it.

#define EACH(name, T, R, expression)                                                              \
    extern "C" __global__ void name(const T *xs, const T *ys, R *out, int n) {                    \
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { \
            T x = xs[i], y = ys[i];                                                               \
            out[i] = (expression);                                                                \
        }                                                                                         \
    }

EACH(axpby, float, float, 2.5f * x - y / 3.f)
EACH(clamped, float, float, fminf(fmaxf(x, -1.f), y))
EACH(magnitude, float, float, hypotf(x, y))
EACH(inverse_root, float, float, rsqrtf(y) + sqrtf(y))
EACH(exponentials, float, float, expf(x) - exp2f(y) + expm1f(x))
EACH(logarithms, float, float, logf(y) + log2f(y) * log10f(y) + log1pf(y))
EACH(circular, float, float, sinf(x) * cosf(y) + tanf(y * 0.25f))
EACH(far_sine, float, float, sinf(x * 1e7f))
EACH(arcs, float, float, atan2f(x, y) + asinf(x * 0.05f) + acosf(y * 0.2f))
EACH(hyperbolic, float, float, sinhf(x) + coshf(x) + tanhf(y))
EACH(powers, float, float, powf(y, x))
EACH(cube_root, float, float, cbrtf(x))
EACH(error_function, float, float, erff(x) + erfcf(y))
EACH(log_gamma, float, float, lgammaf(y))
EACH(sigmoid, float, float, 1.f / (1.f + expf(-x)))
EACH(gelu, float, float, 0.5f * x * (1.f + erff(x * 0.70710678f)))
EACH(integral, float, float, floorf(x) + 10 * ceilf(x) + 100 * rintf(x) + 1000 * truncf(x))
EACH(remainders, float, float, fmodf(x * 100.f, y))
EACH(signs, float, float, copysignf(y, x) + fabsf(x))
EACH(neighbours, float, float, nextafterf(x, y))
EACH(classes, float, int, isnan(x / (y - y)) + 2 * isinf(y / (x - x)) + 4 * signbit(x) + 8 * (x < y))
EACH(fast, float, float, __expf(x) + __sinf(y) + __logf(y) + __fdividef(x, y) + __powf(y, 1.5f))
EACH(integers, float, int, (int)x + 10 * __float2int_rn(x) + 100 * __float2int_ru(x) + (int)(unsigned char)y)
EACH(saturated, float, float, __saturatef(x) + __fmaf_rz(x, y, 1.f) * 0.f)
EACH(bits, float, unsigned, __float_as_uint(x) ^ __float_as_uint(y))
EACH(doubles, double, double, exp(x) * log(y) + pow(y, x) + sin(x) / cos(y * 0.3))
EACH(double_roots, double, double, sqrt(y) + cbrt(x) + rsqrt(y) + hypot(x, y) + fma(x, y, 1.0))
EACH(double_errors, double, double, erf(x) + atan(x) + log1p(y) + tanh(x))
EACH(rounded_up, double, double, __dadd_ru(x, y) - __dadd_rd(x, y))
EACH(quotients, double, double, __ddiv_ru(x, y) >= __ddiv_rd(x, y) ? __dmul_rz(x, y) : 0.0)
EACH(mixed, double, float, (float)x * (float)y + __double2float_rz(x))

// Newton's method until it does not change any more: threads leave the loop at different times.
extern "C" __global__ void newton(const float *xs, const float *ys, float *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float target = ys[i], guess = 1.f, before = 0.f;
        for (int step = 0; step < 100 && guess != before; step++) {
            before = guess;
            guess = 0.5f * (guess + target / guess);
        }
        out[i] = guess;
    }
}

// How long a point of the plane stays near the origin.
extern "C" __global__ void mandelbrot(const float *xs, const float *ys, int *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        double re = xs[i] * 0.4, im = ys[i] * 0.4 - 0.8, a = 0, b = 0;
        int steps = 0;
        while (steps < 200 && a * a + b * b <= 4) {
            double next = __dadd_rn(__dsub_rn(__dmul_rn(a, a), __dmul_rn(b, b)), re);
            b = __dadd_rn(__dmul_rn(2, __dmul_rn(a, b)), im);
            a = next;
            steps++;
        }
        out[i] = steps;
    }
}
