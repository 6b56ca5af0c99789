// What is done number by number, or row by row: norms, activations, rotary embedding, conversions.
#pragma once
#include <cmath>

#include "decoder.h"
#include "simd.h"

namespace INSTRUCTION_SET {

enum Activation : int64_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

static inline int64_t whole_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// out[i] = x[i], rounded to T.
template <class T>
static void convert(const float* x, int64_t count, T* out) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) store_rounded(out + at, load(x + at));
  if (at < count) {
    float rest[LANES] = {};
    T rounded[LANES];
    std::memcpy(rest, x + at, (count - at) * sizeof(float));
    store_rounded(rounded, load(rest));
    std::memcpy(out + at, rounded, (count - at) * sizeof(T));
  }
}

// out[i] = x[i], exactly.
template <class T>
static void widen(const T* x, int64_t count, float* out) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) store(out + at, load_widened(x + at));
  if (at < count) {
    T rest[LANES] = {};
    float wide[LANES];
    std::memcpy(rest, x + at, (count - at) * sizeof(T));
    store(wide, load_widened(rest));
    std::memcpy(out + at, wide, (count - at) * sizeof(float));
  }
}

// Where the greatest number is, the first of several.
static inline int64_t place_of_greatest(const float* x, int64_t count) {
  constexpr int64_t BLOCK = 64 * LANES;
  float greatest = -INFINITY;
  int64_t begin = 0;
  for (int64_t block = 0; block < count; block += BLOCK) {
    const int64_t stop = block + BLOCK < count ? block + BLOCK : count;
    int64_t at = block;
    Vector most = all(-INFINITY);
    for (; at + LANES <= stop; at += LANES) most = greater_of(load(x + at), most);
    float of_block = greatest_of(most);
    for (; at < stop; ++at) of_block = x[at] > of_block ? x[at] : of_block;
    if (of_block > greatest) {
      greatest = of_block;
      begin = block;
    }
  }
  while (begin + 1 < count && x[begin] < greatest) ++begin;
  return begin;
}

// 1 / sqrt(mean of squares + epsilon) of `count` numbers; those up to the next multiple of 64 must be 0.
static inline float inverse_norm(const float* x, int64_t count, float epsilon) {
  Vector sums[4] = {zeros(), zeros(), zeros(), zeros()};
  for (int64_t at = 0; at < count; at += 4 * LANES) {
    for (int part = 0; part < 4; ++part) {
      const Vector values = load(x + at + part * LANES);
      sums[part] = multiply_add(values, values, sums[part]);
    }
  }
  const float squares = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
}

// out[i] += x[i].
template <class T>
static void add_widened(const T* x, int64_t count, float* out) {
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) store(out + at, load(out + at) + load_widened(x + at));
  float rest[LANES];
  widen(x + at, count - at, rest);
  for (int64_t i = 0; at + i < count; ++i) out[at + i] += rest[i];
}

// out = x / rms(x) * weight. x, weight and out are padded to a multiple of 64, the first two with 0.
template <class T>
static void norm_row(const float* x, const float* weight, int64_t count, float epsilon, T* out) {
  const Vector factor = all(inverse_norm(x, count, epsilon));
  for (int64_t at = 0; at < count; at += LANES) store_rounded(out + at, load(x + at) * factor * load(weight + at));
}

// The sum of f(x) over `count` numbers.
template <class Function>
static inline float sum_over(const float* x, int64_t count, Function f) {
  Vector sum = zeros();
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES) sum = sum + f(load(x + at));
  float rest[LANES];
  for (int64_t i = 0; i < LANES; ++i) rest[i] = 0;
  if (at < count) {
    std::memcpy(rest, x + at, (count - at) * sizeof(float));
    store(rest, f(load(rest)));
    for (int64_t i = count - at; i < LANES; ++i) rest[i] = 0;
  }
  return sum_of(sum + load(rest));
}

// out = (x - mean(x)) / deviation(x) * weight + bias. x, weight, bias and out are padded to a multiple of 64; out may
// be x.
template <class T>
static void norm_centered_row(const float* x, const float* weight, const float* bias, int64_t count, float epsilon,
                              T* out) {
  const Vector mean = all(sum_over(x, count, [](Vector v) { return v; }) / static_cast<float>(count));
  const float squares = sum_over(x, count, [mean](Vector v) { return (v - mean) * (v - mean); });
  const Vector factor = all(1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon));
  for (int64_t at = 0; at < count; at += LANES) {
    store_rounded(out + at, multiply_add((load(x + at) - mean) * factor, load(weight + at), load(bias + at)));
  }
}

template <class T>
static void norm_by(const Norm& norm, const float* x, int64_t count, float epsilon, T* out) {
  if (norm.bias != nullptr) {
    norm_centered_row(x, norm.weight, norm.bias, count, epsilon, out);
  } else {
    norm_row(x, norm.weight, count, epsilon, out);
  }
}

// The same for a head of any even size, in place.
static void norm_head(float* x, const float* weight, int64_t count, float epsilon, float* scratch) {
  const int64_t padded = (count + 63) / 64 * 64;
  for (int64_t at = 0; at < count; ++at) scratch[at] = x[at];
  for (int64_t at = count; at < padded; ++at) scratch[at] = 0;
  const float factor = inverse_norm(scratch, count, epsilon);
  for (int64_t at = 0; at < count; ++at) x[at] = scratch[at] * factor * weight[at];
}

// Turns pairs (i, i + half) of a head.
static void rotate_head(float* x, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[i], second = x[i + half];
    x[i] = first * cosines[i] - second * sines[i];
    x[i + half] = second * cosines[i] + first * sines[i];
  }
}

static inline Vector activated(Activation activation, Vector x) {
  const Vector one = all(1.0f);
  switch (activation) {
    case SILU: return x / (one + exponential(zeros() - x));
    case RELU: return greater_of(zeros(), x);
    case GELU_TANH: {
      // tanh(u) = 1 - 2 / (e^2u + 1), u = sqrt(2 / pi) (x + 0.044715 x^3)
      const Vector u = all(0.797884561f) * (x + all(0.044715f) * x * x * x);
      const Vector tanh = one - all(2.0f) / (exponential(u + u) + one);
      return all(0.5f) * x * (one + tanh);
    }
    case GELU: break;
  }
  float values[LANES];
  store(values, x);
  for (float& value : values) value = 0.5f * value * (1.0f + erff(value * 0.707106781f));
  return load(values);
}

}  // namespace INSTRUCTION_SET
