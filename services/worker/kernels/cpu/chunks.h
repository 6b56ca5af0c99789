// What is computed of a chunk of keys and values (attention.h): 64 positions of one kv head, wherever these lie in the
// pool. A chunk is as wide as a panel of weights; packed like one, it is multiplied by the products of products.h.
#pragma once
#include <cmath>

#include "products.h"

namespace INSTRUCTION_SET {

constexpr int64_t CHUNK = PANEL;  // positions

template <class T>
constexpr int64_t VALUE_WORDS = CHUNK / WORD_NUMBERS<T>;

// Brings near what lies so many numbers behind the rows of a chunk, in K and in V.
template <class T>
static void fetch_rows(const T* const* keys, int64_t begin, int64_t numbers, int64_t values_after_keys) {
  for (int64_t n = 0; n < CHUNK; ++n) {
    for (int64_t at = begin; at < begin + numbers; at += LINE_BYTES / static_cast<int64_t>(sizeof(T))) {
      _mm_prefetch(reinterpret_cast<const char*>(keys[n] + at), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(keys[n] + values_after_keys + at), _MM_HINT_T1);
    }
  }
}

// K and V of a chunk that will be needed, brought near in even shares while another one is computed: memory answers only
// so many requests at a time, and those for neighbours sooner.
template <class T>
class ChunkAhead {
 public:
  // Of the first `positions` rows so many numbers of each, in so many shares.
  ChunkAhead(const T* const* keys, int64_t positions, int64_t numbers, int64_t values_after_keys, int64_t shares)
      : keys_(keys), positions_(positions), numbers_(numbers), values_after_keys_(values_after_keys) {
    const int64_t lines = 2 * positions * ((numbers + LINE_NUMBERS - 1) / LINE_NUMBERS);
    lines_of_share_ = (lines + shares - 1) / shares;
  }

  void fetch_share() {
    for (int64_t line = 0; line < lines_of_share_ && row_ < 2 * positions_; ++line) {
      const T* row = row_ < positions_ ? keys_[row_] : keys_[row_ - positions_] + values_after_keys_;
      _mm_prefetch(reinterpret_cast<const char*>(row + number_), _MM_HINT_T0);
      number_ += LINE_NUMBERS;
      if (number_ < numbers_) continue;
      number_ = 0;
      ++row_;
    }
  }

 private:
  static constexpr int64_t LINE_NUMBERS = LINE_BYTES / sizeof(T);

  const T* const* keys_;
  const int64_t positions_, numbers_, values_after_keys_;
  int64_t lines_of_share_;
  int64_t row_ = 0;  // of K, then of V
  int64_t number_ = 0;
};

// Packs K of a chunk.
template <class T>
static void pack_keys(const T* const* keys, int64_t head_size, uint32_t* out) {
  const int64_t words = words_of<T>(head_size);
  for (int64_t group = 0; group < CHUNK; group += 16) {
    const uint32_t* rows[16];
    for (int64_t r = 0; r < 16; ++r) rows[r] = reinterpret_cast<const uint32_t*>(keys[group + r]);
    int64_t word = 0;
    for (; word + 16 <= words; word += 16) transpose_words(rows, word, out + word * CHUNK + group, CHUNK);
    for (; word < words; ++word) {
      for (int64_t r = 0; r < 16; ++r) std::memcpy(out + word * CHUNK + group + r, rows[r] + word, sizeof(uint32_t));
    }
  }
}

static inline void pack_value_word(const Bfloat16* const* rows, int64_t at, int64_t count, uint32_t* out) {
  if (count >= LANES) return pair_up(rows[0] + at, rows[1] + at, out);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = rows[0][at + i].bits | static_cast<uint32_t>(rows[1][at + i].bits) << 16;
  }
}
static inline void pack_value_word(const float* const* rows, int64_t at, int64_t count, uint32_t* out) {
  std::memcpy(out, rows[0] + at, (count < LANES ? count : LANES) * sizeof(float));
}

// Whether packed V, and with it what is found, has its dimensions in the order of read_pairs.
template <class T>
static bool packs_in_pairs(int64_t head_size) {
  return BY_TILES<T> && head_size % (2 * LANES) == 0;
}

#if defined(WITH_TILES)
static inline void pack_pairs(const Bfloat16* const* rows, int64_t at, uint32_t* out) {
  Words pairs[2];
  read_pairs(rows[0] + at, rows[1] + at, pairs);
  store_words(out, pairs[0]);
  store_words(out + LANES, pairs[1]);
}
#endif

// Packs V of a chunk: a word is one dimension of one or two positions. Places beyond the head stay 0.
template <class T>
static void pack_values(const T* const* values, int64_t head_size, uint32_t* out) {
  const int64_t words = words_of<T>(CHUNK);
  const int64_t step = packs_in_pairs<T>(head_size) ? 2 * LANES : LANES;
  for (int64_t word = 0; word < words; ++word) {
    const T* const* rows = values + word * WORD_NUMBERS<T>;
    for (int64_t at = 0; at < head_size; at += step) {
      uint32_t* to = out + (at / PANEL * words + word) * PANEL + at % PANEL;
      if constexpr (BY_TILES<T>) {
        if (packs_in_pairs<T>(head_size)) {
          pack_pairs(rows, at, to);
          continue;
        }
      }
      pack_value_word(rows, at, head_size - at, to);
    }
  }
}

// The vectors of one part of a word of V, as they lie in its rows.
template <class T, int VECTORS>
static inline void read_values(const T* const* values, int64_t word, int part, int64_t at, Words* w) {
  if constexpr (IN_PAIRS<T>) {
    const T *first = values[2 * word] + at, *second = values[2 * word + 1] + at;
    for (int v = 0; v < VECTORS; v += 2) read_pairs(first + v * LANES, second + v * LANES, w + v);
  } else {
    const T* from = values[word * PARTS<T> + part] + at;
    for (int v = 0; v < VECTORS; ++v) w[v] = as_words(load_widened(from + v * LANES));
  }
}

// found[r][0..63] += rows r of weights times 64 dimensions of V of a chunk, of which so many positions are read where
// they lie.
template <class T, int ROWS>
static NOT_INLINED void weighted_tile(const uint32_t* weights, const T* const* values, int64_t at, int64_t positions,
                                      float* found) {
  constexpr int VECTORS = vectors_for(ROWS);
  const Multiplicands<T, ROWS> numbers(weights, VALUE_WORDS<T>, VALUE_WORDS<T>);
  for (int first = 0; first < PANEL; first += VECTORS * LANES) {
    Sums<ROWS, VECTORS> sum;
    begin_sums<ROWS, VECTORS>(sum, found + first, false);
    if (IN_PAIRS<T>) into_order_of_pairs<ROWS, VECTORS>(sum);
    for (int64_t word = 0; word * WORD_NUMBERS<T> < positions; ++word) {
      for (int part = 0; part < PARTS<T>; ++part) {
        Words w[VECTORS];
        read_values<T, VECTORS>(values, word, part, at + first, w);
        add_part<T, ROWS, VECTORS>(sum, numbers, word, part, w);
      }
    }
    if (IN_PAIRS<T>) out_of_order_of_pairs<ROWS, VECTORS>(sum);
    write_sums<ROWS, VECTORS>(sum, found + first);
  }
}

// The most rows of weights that V is multiplied with where it lies.
constexpr int64_t MOST_TOGETHER = 4;

// Not where tiles multiply, nor for heads that are not whole panels.
template <class T>
static bool reads_values_in_place(int64_t head_size) {
  return !BY_TILES<T> && head_size % PANEL == 0;
}

// The same for all dimensions of a head and at most MOST_TOGETHER rows; panels of `found` are `panel_step` numbers
// apart.
template <class T>
static void add_values(const uint32_t* weights, int64_t rows, const T* const* values, int64_t positions,
                       int64_t head_size, float* found, int64_t panel_step) {
  for (int64_t at = 0; at < head_size; at += PANEL, found += panel_step) {
    switch (rows) {
      case 1: weighted_tile<T, 1>(weights, values, at, positions, found); break;
      case 2: weighted_tile<T, 2>(weights, values, at, positions, found); break;
      case 3: weighted_tile<T, 3>(weights, values, at, positions, found); break;
      case 4: weighted_tile<T, 4>(weights, values, at, positions, found); break;
    }
  }
}

constexpr int64_t SIDE = 16;  // keys, and words of them, that are turned at a time: a square
constexpr int64_t WORDS_OF_SHARE = 4;

// How many shares of what is needed next score_keys fetches.
static inline int64_t shares_of(int64_t queries, int64_t words, int64_t positions) {
  return (positions + SIDE - 1) / SIDE * (words / WORDS_OF_SHARE) * queries;
}

// scores[query][0..63] = so many queries times the first `positions` keys of a chunk, and some more. The same sums as
// of packed keys, but a square is turned at a time, and does not leave the first cache. The words of a head are a
// multiple of SIDE. Meanwhile shares of what is needed next are fetched.
template <class T>
static void score_keys(const uint32_t* queries, int64_t count, const T* const* keys, int64_t words, int64_t positions,
                       float* scores, ChunkAhead<T>* ahead) {
  alignas(64) uint32_t turned[SIDE * SIDE], numbers[PARTS<T> * SIDE];
  for (int64_t group = 0; group < positions; group += SIDE) {
    const uint32_t* rows[SIDE];
    for (int64_t r = 0; r < SIDE; ++r) rows[r] = reinterpret_cast<const uint32_t*>(keys[group + r]);
    for (int64_t word = 0; word < words; word += SIDE) {
      transpose_words(rows, word, turned, SIDE);
      for (int64_t query = 0; query < count; ++query) {
        const Words ours = load_words(queries + query * words + word);
        for (int part = 0; part < PARTS<T>; ++part) store_words(numbers + part * SIDE, part_of<T>(ours, part));
        float* to = scores + query * CHUNK + group;
        Vector sum = word == 0 ? zeros() : load(to);
        for (int64_t one = 0; one < SIDE; ++one) {
          if (one % WORDS_OF_SHARE == 0) ahead->fetch_share();
          const Words theirs = load_words(turned + one * SIDE);
          for (int part = 0; part < PARTS<T>; ++part) {
            sum = plus_product<T>(sum, all_words(numbers[part * SIDE + one]), part_of<T>(theirs, part));
          }
        }
        store(to, sum);
      }
    }
  }
}

#if defined(WITH_TILES)
constexpr int64_t MOST_COLUMNS = LANES;

// The words of at most MOST_COLUMNS queries side by side: columns[word][query].
static void turn_queries(const uint32_t* queries, int64_t count, int64_t words, uint32_t* columns) {
  for (int64_t word = 0; word < words; ++word) {
    for (int64_t query = 0; query < MOST_COLUMNS; ++query) {
      columns[word * MOST_COLUMNS + query] = query < count ? queries[query * words + word] : 0;
    }
  }
}

// scores[query][0..63] = so many queries, turned, times the first `positions` keys of a chunk, and some more. A tile's
// rows are keys where they lie: 16 of one block, `step` numbers apart. The same sums as of packed keys, since a product
// does not depend on the order of its factors. The words of a head are a multiple of TILE_DEPTH.
static void score_keys_by_tiles(const uint32_t* columns, int64_t count, const Bfloat16* const* keys, int64_t step,
                                int64_t words, int64_t positions, float* scores) {
  constexpr int64_t SIDE = TILE_DEPTH, ROW_BYTES = SIDE * sizeof(uint32_t);
  alignas(64) float turned[4 * SIDE * SIDE];
  const int64_t groups = (positions + SIDE - 1) / SIDE, step_bytes = step * static_cast<int64_t>(sizeof(Bfloat16));
  shape_for(SIDE, SIDE);
  CLEAR_TILE(0);
  CLEAR_TILE(1);
  CLEAR_TILE(2);
  CLEAR_TILE(3);
  for (int64_t word = 0; word < words; word += SIDE) {
    LOAD_TILE(7, columns + word * MOST_COLUMNS, ROW_BYTES);
    LOAD_TILE(4, keys[0] + 2 * word, step_bytes);
    MULTIPLY_TILES(0, 4, 7);
    if (groups > 1) {
      LOAD_TILE(5, keys[SIDE] + 2 * word, step_bytes);
      MULTIPLY_TILES(1, 5, 7);
    }
    if (groups > 2) {
      LOAD_TILE(6, keys[2 * SIDE] + 2 * word, step_bytes);
      MULTIPLY_TILES(2, 6, 7);
    }
    if (groups > 3) {
      LOAD_TILE(4, keys[3 * SIDE] + 2 * word, step_bytes);
      MULTIPLY_TILES(3, 4, 7);
    }
  }
  STORE_TILE(0, turned, ROW_BYTES);
  STORE_TILE(1, turned + SIDE * SIDE, ROW_BYTES);
  STORE_TILE(2, turned + 2 * SIDE * SIDE, ROW_BYTES);
  STORE_TILE(3, turned + 3 * SIDE * SIDE, ROW_BYTES);
  for (int64_t query = 0; query < count; ++query) {
    for (int64_t group = 0; group < 4; ++group) {
      store(scores + query * CHUNK + group * SIDE, load_column(turned + group * SIDE * SIDE + query));
    }
  }
}
#endif

// Scales the scores of one query, hides what it may not look at, and turns them into weights. Returns the factor of
// what was found before.
template <class T>
static float weigh_scores(float* scores, float scale, int64_t first_seen, int64_t last_seen, float* greatest,
                          float* total, T* weights) {
  Vector s[CHUNK / LANES];
  for (int v = 0; v < CHUNK / LANES; ++v) s[v] = load(scores + v * LANES) * all(scale);
  if (first_seen > 0 || last_seen < CHUNK - 1) {
    for (int v = 0; v < CHUNK / LANES; ++v) store(scores + v * LANES, s[v]);
    for (int64_t i = 0; i < first_seen && i < CHUNK; ++i) scores[i] = -INFINITY;
    for (int64_t i = last_seen + 1 > 0 ? last_seen + 1 : 0; i < CHUNK; ++i) scores[i] = -INFINITY;
    for (int v = 0; v < CHUNK / LANES; ++v) s[v] = load(scores + v * LANES);
  }
  const float here = greatest_of(greater_of(greater_of(s[0], s[1]), greater_of(s[2], s[3])));
  const float before = *greatest;
  const float now = here > before ? here : before;
  if (now == -INFINITY) {  // nothing seen yet
    for (int v = 0; v < CHUNK / LANES; ++v) store_rounded(weights + v * LANES, zeros());
    return 1.0f;
  }
  float correction = 1.0f;
  if (now != before) {
    float one[LANES];
    store(one, exponential(all(before - now)));
    correction = one[0];
  }
  Vector sum = zeros();
  for (int v = 0; v < CHUNK / LANES; ++v) {
    const Vector weight = exponential(s[v] - all(now));
    sum = sum + weight;
    store_rounded(weights + v * LANES, weight);
  }
  *greatest = now;
  *total = *total * correction + sum_of(sum);
  return correction;
}

}  // namespace INSTRUCTION_SET
