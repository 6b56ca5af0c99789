// Vectors of 16 floats, for each instruction set that this file is compiled for.
//
// A word is what a product reads at once: 2 bfloat16 numbers, the first one in the low half, or 1 float32.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace INSTRUCTION_SET {

struct Bfloat16 {
  uint16_t bits;
};

constexpr int LANES = 16;

#if defined(__AVX512F__)

// The rows of a product, and the vectors of its sums, that are kept in registers.
constexpr int REGISTER_ROWS = 6;
constexpr int REGISTER_SUMS = 24;

struct Vector {
  __m512 v;
};
struct Words {
  __m512i v;
};

static inline Vector zeros() { return {_mm512_setzero_ps()}; }
// x, computed at this place of the program: the compiler would move loads away from where they are needed, and run out
// of registers.
static inline Vector computed_here(Vector x) {
  __asm__ volatile("" : "+v"(x.v));
  return x;
}
static inline Vector all(float x) { return {_mm512_set1_ps(x)}; }
static inline Vector load(const float* x) { return {_mm512_loadu_ps(x)}; }
static inline void store(float* out, Vector x) { _mm512_storeu_ps(out, x.v); }
static inline Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vector operator/(Vector a, Vector b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once
static inline Vector multiply_add(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// the second where one of them is no number
static inline Vector greater_of(Vector a, Vector b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vector less_of(Vector a, Vector b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Vector nearest_whole(Vector x) { return {_mm512_roundscale_ps(x.v, 8)}; }
static inline Vector zero_where_less(Vector x, Vector a, Vector b) {
  return {_mm512_mask_mov_ps(x.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), _mm512_setzero_ps())};
}
// x * 2^n for whole n
static inline Vector scaled_by_power(Vector x, Vector n) { return {_mm512_scalef_ps(x.v, n.v)}; }
static inline float sum_of(Vector x) { return _mm512_reduce_add_ps(x.v); }
static inline float greatest_of(Vector x) { return _mm512_reduce_max_ps(x.v); }

// The first numbers of 16 rows of 16.
static inline Vector load_column(const float* x) {
  const __m512i rows = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
  return {_mm512_i32gather_ps(rows, x, sizeof(float))};
}

static inline Words load_words(const uint32_t* x) { return {_mm512_loadu_si512(x)}; }
static inline void store_words(uint32_t* out, Words x) { _mm512_storeu_si512(out, x.v); }
static inline Words all_words(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
static inline Vector as_vector(Words x) { return {_mm512_castsi512_ps(x.v)}; }
static inline Words as_words(Vector x) { return {_mm512_castps_si512(x.v)}; }

#if defined(__AVX512BF16__)
static inline Vector plus_pairs(Vector sum, Words a, Words b) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)};
}
static inline void store_rounded(Bfloat16* out, Vector x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(x.v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)rounded);
}
#else
static inline Words first_numbers(Words x) { return {_mm512_slli_epi32(x.v, 16)}; }
static inline Words second_numbers(Words x) {
  return {_mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))};
}
// To the nearest, ties to even; what is no number stays none.
static inline void store_rounded(Bfloat16* out, Vector x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(rounded));
}
#endif

static inline Vector load_widened(const Bfloat16* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

static inline Vector load_widened(const int8_t* x) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))))};
}

// The 16 upper bytes of a panel's codes, in each quarter.
struct UpperBytes {
  __m512i v;
  explicit UpperBytes(const uint8_t* bytes)
      : v(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)))) {}
};

// 32 words, the first or the second half of a panel's, of coded numbers (decoder.h).
template <int HALF>
static inline void words_of_codes(const uint8_t* coded, UpperBytes upper, Words* words) {
  const __m512i lower = _mm512_loadu_si512(coded + 64 * HALF);
  __m512i codes = _mm512_loadu_si512(coded + 128);
  if (HALF == 1) codes = _mm512_srli_epi16(codes, 4);
  const __m512i found = _mm512_shuffle_epi8(upper.v, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
  words[0] = {_mm512_unpacklo_epi8(lower, found)};
  words[1] = {_mm512_unpackhi_epi8(lower, found)};
}

// out[c * out_step + r] = x[r][c] for 16 rows of 16 words.
static inline void transpose_words(const uint32_t* const* x, int64_t offset, uint32_t* out, int64_t out_step) {
  __m512i a[16], b[16];
  for (int r = 0; r < 16; ++r) a[r] = _mm512_loadu_si512(x[r] + offset);
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
  for (int r = 0; r < 16; r += 4) {
    a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
  // a[4 q + c] holds columns c, 4 + c, 8 + c, 12 + c of rows 4 q to 4 q + 3, one column in each quarter.
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);         // columns c, 8 + c of rows 0 to 7
    const __m512i high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);   // and of rows 8 to 15
    const __m512i low_odd = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);     // columns 4 + c, 12 + c
    const __m512i high_odd = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_si512(out + c * out_step, _mm512_shuffle_i32x4(low, high, 0x88));
    _mm512_storeu_si512(out + (8 + c) * out_step, _mm512_shuffle_i32x4(low, high, 0xdd));
    _mm512_storeu_si512(out + (4 + c) * out_step, _mm512_shuffle_i32x4(low_odd, high_odd, 0x88));
    _mm512_storeu_si512(out + (12 + c) * out_step, _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd));
  }
}

// out[c] = (a[c], b[c]) as a word, for 16 columns.
static inline void pair_up(const Bfloat16* a, const Bfloat16* b, uint32_t* out) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)));
  _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

#else  // AVX2 with FMA

constexpr int REGISTER_ROWS = 5;
constexpr int REGISTER_SUMS = 5;

struct Vector {
  __m256 low, high;
};
struct Words {
  __m256i low, high;
};

static inline Vector zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Vector computed_here(Vector x) {
  __asm__ volatile("" : "+x"(x.low), "+x"(x.high));
  return x;
}
static inline Vector all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Vector load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
static inline void store(float* out, Vector x) {
  _mm256_storeu_ps(out, x.low);
  _mm256_storeu_ps(out + 8, x.high);
}
static inline Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
static inline Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
static inline Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
static inline Vector operator/(Vector a, Vector b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
static inline Vector multiply_add(Vector a, Vector b, Vector c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline Vector greater_of(Vector a, Vector b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
static inline Vector less_of(Vector a, Vector b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
static inline Vector nearest_whole(Vector x) { return {_mm256_round_ps(x.low, 8), _mm256_round_ps(x.high, 8)}; }
static inline Vector zero_where_less(Vector x, Vector a, Vector b) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), x.low),
          _mm256_andnot_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ), x.high)};
}
// Two steps, since 2^128 is beyond the range while x * 2^128 may not be.
static inline __m256 scaled_half(__m256 x, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(first, bias), 23);
  const __m256i rest = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, first), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(power)), _mm256_castsi256_ps(rest));
}
static inline Vector scaled_by_power(Vector x, Vector n) { return {scaled_half(x.low, n.low), scaled_half(x.high, n.high)}; }
static inline float sum_of(Vector x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
static inline float greatest_of(Vector x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

static inline Words load_words(const uint32_t* x) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8))};
}
static inline void store_words(uint32_t* out, Words x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), x.high);
}
static inline Words all_words(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
static inline Vector as_vector(Words x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
static inline Words as_words(Vector x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }

static inline Words first_numbers(Words x) { return {_mm256_slli_epi32(x.low, 16), _mm256_slli_epi32(x.high, 16)}; }
static inline Words second_numbers(Words x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_and_si256(x.low, high), _mm256_and_si256(x.high, high)};
}
static inline __m256i rounded_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), none);
}
static inline void store_rounded(Bfloat16* out, Vector x) {
  const __m256i packed = _mm256_packus_epi32(rounded_half(x.low), rounded_half(x.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xd8));
}
static inline Vector load_widened(const Bfloat16* x) {
  const __m128i* bits = reinterpret_cast<const __m128i*>(x);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(bits)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(bits + 1)), 16))};
}

static inline Vector load_widened(const int8_t* x) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

struct UpperBytes {
  __m256i v;
  explicit UpperBytes(const uint8_t* bytes)
      : v(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)))) {}
};

template <int HALF>
static inline void words_of_codes(const uint8_t* coded, UpperBytes upper, Words* words) {
  const auto at = [coded](int place) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(coded + place)); };
  const auto found = [upper](__m256i codes) {
    if (HALF == 1) codes = _mm256_srli_epi16(codes, 4);
    return _mm256_shuffle_epi8(upper.v, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  };
  const __m256i first = at(64 * HALF), second = at(64 * HALF + 32);
  const __m256i first_found = found(at(128)), second_found = found(at(160));
  words[0] = {_mm256_unpacklo_epi8(first, first_found), _mm256_unpacklo_epi8(second, second_found)};
  words[1] = {_mm256_unpackhi_epi8(first, first_found), _mm256_unpackhi_epi8(second, second_found)};
}

static inline void transpose_words(const uint32_t* const* x, int64_t offset, uint32_t* out, int64_t out_step) {
  for (int64_t r = 0; r < 16; r += 8) {
    for (int64_t c = 0; c < 16; c += 8) {
      __m256 a[8], b[8];
      for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(x[r + i] + offset + c));
      for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
      }
      for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
      }
      for (int i = 0; i < 4; ++i) {
        float* to = reinterpret_cast<float*>(out + (c + i) * out_step + r);
        float* beyond = reinterpret_cast<float*>(out + (c + 4 + i) * out_step + r);
        _mm256_storeu_ps(to, _mm256_permute2f128_ps(a[i], a[4 + i], 0x20));
        _mm256_storeu_ps(beyond, _mm256_permute2f128_ps(a[i], a[4 + i], 0x31));
      }
    }
  }
}

static inline void pair_up(const Bfloat16* a, const Bfloat16* b, uint32_t* out) {
  for (int half = 0; half < 2; ++half) {
    const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a) + half));
    const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b) + half));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + half, _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
  }
}

#endif

static inline void store_rounded(float* out, Vector x) { store(out, x); }
static inline Vector load_widened(const float* x) { return load(x); }

// Words of 16 outputs. A whole number up to 127 has at most 7 binary digits, so that its bfloat16 is the upper half of
// its float32.
template <class T>
static inline Words words_of_bytes(const int8_t* x);

template <>
inline Words words_of_bytes<float>(const int8_t* x) {
  Words words;
  const Vector numbers = load_widened(x);
  std::memcpy(&words, &numbers, sizeof(words));
  return words;
}
template <>
inline Words words_of_bytes<Bfloat16>(const int8_t* x) {
  Words first = words_of_bytes<float>(x), second = words_of_bytes<float>(x + LANES);
#if defined(__AVX512F__)
  return {_mm512_or_si512(_mm512_srli_epi32(first.v, 16), second.v)};
#else
  return {_mm256_or_si256(_mm256_srli_epi32(first.low, 16), second.low),
          _mm256_or_si256(_mm256_srli_epi32(first.high, 16), second.high)};
#endif
}

// A word is multiplied as one part: two bfloat16 by the processor's product of these, or one float32. Where there is no
// such product, two bfloat16 are two parts, each a float32.
#if defined(__AVX512BF16__)
template <class T>
constexpr int PARTS = 1;
#else
template <class T>
constexpr int PARTS = sizeof(uint32_t) / sizeof(T);
#endif

template <class T>
static inline Words part_of(Words x, int part) {
#if !defined(__AVX512BF16__)
  if (PARTS<T> == 2) return part == 0 ? first_numbers(x) : second_numbers(x);
#endif
  (void)part;
  return x;
}

// The same of words of bytes.
template <class T>
static inline Words part_of_bytes(const int8_t* x, int part) {
  return PARTS<T> == 2 ? words_of_bytes<float>(x + part * LANES) : words_of_bytes<T>(x);
}

// sum + a * b, of a part.
template <class T>
static inline Vector plus_product(Vector sum, Words a, Words b) {
#if defined(__AVX512BF16__)
  if (sizeof(T) == sizeof(Bfloat16)) return plus_pairs(sum, a, b);
#endif
  return multiply_add(as_vector(a), as_vector(b), sum);
}

// Whether a word of two rows is read from both of these as they lie, in an order of columns of its own.
#if defined(__AVX512BF16__)
template <class T>
constexpr bool IN_PAIRS = sizeof(T) == sizeof(Bfloat16);

// words: (a[c], b[c]) of columns c = 0 to 3, 8 to 11, 16 to 19, 24 to 27, and of the other ones of 32
static inline void read_pairs(const Bfloat16* a, const Bfloat16* b, Words* words) {
  const __m512i first = _mm512_loadu_si512(a), second = _mm512_loadu_si512(b);
  words[0] = {_mm512_unpacklo_epi16(first, second)};
  words[1] = {_mm512_unpackhi_epi16(first, second)};
}
template <int ROWS, int VECTORS>
static inline void into_order_of_pairs(Vector (&sum)[ROWS][VECTORS]) {
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; v += 2) {
      const __m512 a = sum[r][v].v, b = sum[r][v + 1].v;
      sum[r][v].v = _mm512_shuffle_f32x4(a, b, 0x88);
      sum[r][v + 1].v = _mm512_shuffle_f32x4(a, b, 0xdd);
    }
  }
}
template <int ROWS, int VECTORS>
static inline void out_of_order_of_pairs(Vector (&sum)[ROWS][VECTORS]) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; v += 2) {
      const __m512 a = sum[r][v].v, b = sum[r][v + 1].v;
      sum[r][v].v = _mm512_permutex2var_ps(a, low, b);
      sum[r][v + 1].v = _mm512_permutex2var_ps(a, high, b);
    }
  }
}
#else
template <class T>
constexpr bool IN_PAIRS = false;
template <int ROWS, int VECTORS>
static inline void into_order_of_pairs(Vector (&)[ROWS][VECTORS]) {}
template <int ROWS, int VECTORS>
static inline void out_of_order_of_pairs(Vector (&)[ROWS][VECTORS]) {}
#endif

// e^x. x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its series up to r^7 / 7!, whose rest is below 1e-8. 0 below
// -87.3, where the result would not be a normal number.
static inline Vector exponential(Vector x) {
  const Vector bounded = less_of(all(88.7f), greater_of(all(-104.0f), x));
  const Vector n = nearest_whole(bounded * all(1.44269504f));
  // ln 2 in two parts: the first has so few bits that n times it is exact
  Vector r = multiply_add(n, all(-0.693359375f), bounded);
  r = multiply_add(n, all(2.12194440e-4f), r);
  Vector series = all(1.0f / 5040);
  series = multiply_add(series, r, all(1.0f / 720));
  series = multiply_add(series, r, all(1.0f / 120));
  series = multiply_add(series, r, all(1.0f / 24));
  series = multiply_add(series, r, all(1.0f / 6));
  series = multiply_add(series, r, all(0.5f));
  series = multiply_add(series, r, all(1.0f));
  series = multiply_add(series, r, all(1.0f));
  return zero_where_less(scaled_by_power(series, n), x, all(-87.3f));
}

}  // namespace INSTRUCTION_SET
