// Attention over the paged pool.
//
// Theory of operation
// -------------------
// A unit of work is a few query rows of one sequence and one kv head, with all query heads that share it. It walks the
// keys in chunks of 64 positions, counted from position 0, and packs each chunk of K and V like a panel of weights, so
// that scores and weighted values are the products of products.h. The softmax is taken chunk by chunk: the greatest
// score so far, the sum of exponentials and the weighted values are corrected whenever a greater one comes.
//
// A decode is the same with a single row. So every row takes the same chunks in the same way wherever it is computed;
// a chunk that a row does not look at changes nothing.
#pragma once
#include "products.h"
#include "rows.h"

namespace INSTRUCTION_SET {

constexpr int64_t CHUNK = PANEL;          // positions
constexpr int64_t MOST_HEAD_SIZE = 1024;
constexpr int64_t UNIT_QUERIES = 96;  // rows times heads of a unit, if it has several rows

// Query rows first_row to first_row + row_count - 1 of a pass, the first of which has position `position`.
struct QueryRows {
  int64_t sequence;
  int64_t first_row;
  int64_t row_count;
  int64_t position;
};

// The memory of one thread.
template <class T>
struct AttentionScratch {
  T* queries;        // [queries, head size padded to words]
  float* scores;     // [queries, CHUNK]
  T* weights;        // [queries, CHUNK]
  float* greatest;   // [queries]
  float* total;      // [queries]
  float* found;      // [panels of the head, queries, PANEL]
  uint32_t* keys;    // [words of a head, CHUNK]
  uint32_t* values;  // [panels of the head, words of a chunk, PANEL]
  T* zero;           // a head of nothing
};

// Where the positions of a sequence are, for one layer and kv head.
template <class T>
struct Pages {
  const T* pool;
  const int64_t* blocks;
  int64_t block_size;
  int64_t block_step;  // numbers from a block to the next
  int64_t position_step;

  const T* key(int64_t position) const {
    return pool + blocks[position / block_size] * block_step + position % block_size * position_step;
  }
  const T* value(int64_t position) const { return key(position) + block_size * position_step; }
};

// Packs K of positions start to stop - 1 (at most CHUNK); the other places of the chunk become 0.
template <class T>
static void pack_keys(const Pages<T>& pages, int64_t start, int64_t stop, int64_t head_size, const T* zero,
                      uint32_t* out) {
  const int64_t words = words_of<T>(head_size);
  for (int64_t group = 0; group < CHUNK; group += 16) {
    const uint32_t* rows[16];
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t position = start + group + r;
      rows[r] = reinterpret_cast<const uint32_t*>(position < stop ? pages.key(position) : zero);
    }
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

// Packs V of the same positions: a word is one dimension of one or two positions. Places beyond the head stay 0.
template <class T>
static void pack_values(const Pages<T>& pages, int64_t start, int64_t stop, int64_t head_size, const T* zero,
                        uint32_t* out) {
  const int64_t words = words_of<T>(CHUNK);
  for (int64_t word = 0; word < words; ++word) {
    const T* rows[WORD_NUMBERS<T>];
    for (int64_t n = 0; n < WORD_NUMBERS<T>; ++n) {
      const int64_t position = start + word * WORD_NUMBERS<T> + n;
      rows[n] = position < stop ? pages.value(position) : zero;
    }
    for (int64_t at = 0; at < head_size; at += LANES) {
      pack_value_word(rows, at, head_size - at, out + (at / PANEL * words + word) * PANEL + at % PANEL);
    }
  }
}

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

// The attention of `rows` for kv head `kv_head`, written to out[row, heads * head size] with `out_step` numbers a row.
// `queries` has `query_step` numbers a row.
template <class T>
static void attend(const Decoder& decoder, int64_t window, const Pages<T>& pages, const QueryRows& rows,
                   int64_t kv_head, const T* queries, int64_t query_step, T* out, int64_t out_step,
                   const AttentionScratch<T>& scratch) {
  const int64_t head_size = decoder.head_size, group = decoder.heads / decoder.kv_heads;
  const int64_t count = rows.row_count * group, head_words = words_of<T>(head_size);
  const int64_t panels = (head_size + PANEL - 1) / PANEL, value_words = words_of<T>(CHUNK);
  const int64_t padded = head_words * WORD_NUMBERS<T>;
  for (int64_t query = 0; query < count; ++query) {
    const T* from = queries + (rows.first_row + query / group) * query_step + (kv_head * group + query % group) * head_size;
    std::memcpy(scratch.queries + query * padded, from, head_size * sizeof(T));
    scratch.greatest[query] = -INFINITY;
    scratch.total[query] = 0;
  }
  std::memset(scratch.found, 0, panels * count * PANEL * sizeof(float));
  const int64_t stop = rows.position + rows.row_count;
  const int64_t first = window > 0 && rows.position >= window ? rows.position - window + 1 : 0;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  for (int64_t start = first / CHUNK * CHUNK; start < stop; start += CHUNK) {
    pack_keys(pages, start, stop, head_size, scratch.zero, scratch.keys);
    pack_values(pages, start, stop, head_size, scratch.zero, scratch.values);
    times_panel<T>(reinterpret_cast<const uint32_t*>(scratch.queries), head_words, count, scratch.keys, head_words,
                   false, true, scratch.scores);
    for (int64_t query = 0; query < count; ++query) {
      const int64_t position = rows.position + query / group;
      const int64_t first_seen = window > 0 ? position - window + 1 - start : 0;
      const float correction =
          weigh_scores(scratch.scores + query * CHUNK, scale, first_seen, position - start, scratch.greatest + query,
                       scratch.total + query, scratch.weights + query * CHUNK);
      if (correction == 1.0f) continue;
      for (int64_t panel = 0; panel < panels; ++panel) {
        float* found = scratch.found + (panel * count + query) * PANEL;
        for (int64_t at = 0; at < PANEL; at += LANES) store(found + at, load(found + at) * all(correction));
      }
    }
    for (int64_t panel = 0; panel < panels; ++panel) {
      const uint32_t* values = scratch.values + panel * value_words * PANEL;
      times_panel<T>(reinterpret_cast<const uint32_t*>(scratch.weights), value_words, count, values, value_words,
                     false, false, scratch.found + panel * count * PANEL);
    }
  }
  for (int64_t query = 0; query < count; ++query) {
    T* to = out + (rows.first_row + query / group) * out_step + (kv_head * group + query % group) * head_size;
    const Vector inverse = all(1.0f / scratch.total[query]);
    for (int64_t panel = 0; panel < panels; ++panel) {
      float* found = scratch.found + (panel * count + query) * PANEL;
      for (int64_t at = 0; at < PANEL; at += LANES) store(found + at, load(found + at) * inverse);
      const int64_t rest = head_size - panel * PANEL;
      convert(found, rest < PANEL ? rest : PANEL, to + panel * PANEL);
    }
  }
}

}  // namespace INSTRUCTION_SET
