/* Row-wise operations of a decoder layer, one pass each: what torch does in a dozen small calls.
 *
 * Compiled once for each element type (-DBF16 or not) by kernels/cpu/native.py and called through ctypes. All arithmetic
 * is fp32; a result is rounded once. A row's result depends on that row alone. Shapes: R rows, H hidden, M MLP width,
 * N query heads, K kv heads, D head dimension, S cache slots. Every array is dense, rows first.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef BF16
typedef uint16_t element;

static inline float load(element x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To the nearest, ties to even; NaN stays NaN (the addition alone could carry it into infinity). */
static inline element store(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (element)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}
#else
typedef float element;
static inline float load(element x) { return x; }
static inline element store(float value) { return value; }
#endif

static void norm_row(const element *x, const element *weight, element *out, long size, float eps) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < size; i++) {
        float value = load(x[i]);
        sum += value * value;
    }
    float scale = 1.0f / sqrtf(sum / (float)size + eps);
#pragma omp simd
    for (long i = 0; i < size; i++)
        out[i] = store(load(x[i]) * scale * load(weight[i]));
}

/* out[R,H] = x / rms(x) * weight */
void rms_norm(const element *x, const element *weight, element *out, long rows, long size, float eps) {
    for (long r = 0; r < rows; r++)
        norm_row(x + r * size, weight, out + r * size, size, eps);
}

/* sum[R,H] = x + delta, rounded to the element type; out[R,H] = sum / rms(sum) * weight */
void add_rms_norm(const element *x, const element *delta, const element *weight, element *sum, element *out, long rows,
                  long size, float eps) {
    for (long r = 0; r < rows; r++) {
        const element *a = x + r * size, *b = delta + r * size;
        element *row = sum + r * size;
#pragma omp simd
        for (long i = 0; i < size; i++)
            row[i] = store(load(a[i]) + load(b[i]));
        norm_row(row, weight, out + r * size, size, eps);
    }
}

/* e^x for x <= 0, relative error below 3e-7: 2^n times a polynomial on [-ln2/2, ln2/2] (Taylor to the seventh power). */
static inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* out[R,M] = silu(gate) * up; gate_up[R,2M] holds the gate in its first M columns */
void silu_and_multiply(const element *gate_up, element *out, long rows, long size) {
    for (long r = 0; r < rows; r++) {
        const element *gate = gate_up + 2 * r * size, *up = gate + size;
        element *row = out + r * size;
#pragma omp simd
        for (long i = 0; i < size; i++) {
            float g = load(gate[i]);
            float small = exp_negative(-fabsf(g)); /* sigmoid(g) without overflow on either side */
            float sigmoid = (g < 0.0f ? small : 1.0f) / (1.0f + small);
            row[i] = store(g * sigmoid * load(up[i]));
        }
    }
}

static void rotate_head(const element *x, const element *cos, const element *sin, element *out, long size) {
    long half = size / 2;
#pragma omp simd
    for (long i = 0; i < half; i++) {
        float a = load(x[i]), b = load(x[i + half]);
        out[i] = store(a * load(cos[i]) + b * load(sin[i]));
        out[i + half] = store(b * load(cos[i + half]) + a * load(sin[i + half]));
    }
}

/* Rotates the queries of qkv[R,(N+2K)*D] into q_out, and its keys straight into k[S,K,D]; copies values into v[S,K,D].
 * Row r goes to slots[r], or to first_slot + r where slots is null. cos and sin are [R,D], the first half of sin negated.
 * q_out is [R,N,D], or, with folded_rows X > 0, [K,X,D] with the query heads of a kv head, row by row, side by side. */
void rotate_and_write(const element *qkv, const element *cos, const element *sin, element *q_out, element *k, element *v,
                      const int64_t *slots, long first_slot, long rows, long num_heads, long num_kv_heads, long size,
                      long folded_rows) {
    long width = (num_heads + 2 * num_kv_heads) * size, kv_width = num_kv_heads * size;
    long group = num_heads / num_kv_heads;
    long kv_stride = (folded_rows ? folded_rows : group) * size;
    long row_stride = (folded_rows ? group : num_heads) * size;
    for (long r = 0; r < rows; r++) {
        const element *row = qkv + r * width, *c = cos + r * size, *s = sin + r * size;
        long slot = slots ? slots[r] : first_slot + r;
        for (long h = 0; h < num_heads; h++)
            rotate_head(row + h * size, c, s, q_out + h / group * kv_stride + r * row_stride + h % group * size, size);
        for (long h = 0; h < num_kv_heads; h++)
            rotate_head(row + (num_heads + h) * size, c, s, k + slot * kv_width + h * size, size);
        memcpy(v + slot * kv_width, row + (num_heads + num_kv_heads) * size, kv_width * sizeof(element));
    }
}

/* The way back: out[R,N,D] from folded, whose element (kv head, row, d) is at kv_stride * head + row_stride * row + d. */
void unfold(const element *folded, element *out, long kv_stride, long row_stride, long rows, long num_heads,
            long num_kv_heads, long size) {
    long group = num_heads / num_kv_heads;
    for (long r = 0; r < rows; r++)
        for (long h = 0; h < num_heads; h++)
            memcpy(out + (r * num_heads + h) * size,
                   folded + h / group * kv_stride + (r * group + h % group) * row_stride, size * sizeof(element));
}
