// Attention over the paged pool.
//
// Theory of operation
// -------------------
// A unit of work is a few query rows of one sequence and one kv head, with all query heads that share it; or, if there
// is one row, several kv heads, whose keys lie side by side in memory. It walks the keys in chunks of 64 positions,
// counted from position 0, and packs each chunk of K and V like a panel of weights, so that scores and weighted values
// are the products of products.h. The softmax is taken chunk by chunk: the greatest
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
constexpr int64_t UNIT_QUERIES = 96;    // rows times heads of a unit, if it has more than one of both

// Query rows first_row to first_row + row_count - 1 of a pass, the first of which has position `position`.
struct QueryRows {
  int64_t sequence;
  int64_t first_row;
  int64_t row_count;
  int64_t position;
};

// Cuts `count` rows of a pass, of which `row_of` gives each in rising order, into units of at most `most_rows` rows that
// lie side by side in one sequence. Returns how many there are.
template <class RowOf>
static int64_t cut_into_units(const Step& step, int64_t first_row, int64_t count, int64_t most_rows, RowOf row_of,
                              QueryRows* units) {
  int64_t unit_count = 0, end = -first_row, number = 0;
  for (int64_t sequence = 0; sequence < step.sequences && number < count; ++sequence) {
    // A sequence's rows are the last ones of its context.
    end += step.context_lengths[sequence] - step.positions[first_row + end];
    while (number < count && row_of(number) < end) {
      const int64_t row = row_of(number);
      QueryRows unit{sequence, row, 0, step.positions[first_row + row]};
      while (number < count && unit.row_count < most_rows && row_of(number) == row + unit.row_count &&
             row_of(number) < end) {
        ++unit.row_count;
        ++number;
      }
      units[unit_count++] = unit;
    }
  }
  return unit_count;
}

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

  // Where K of positions start to stop - 1 is (at most CHUNK), and for the other places of the chunk, `zero`.
  void find_keys(int64_t start, int64_t stop, const T* zero, const T** keys) const {
    int64_t block = start / block_size, offset = start % block_size;
    const T* page = pool + blocks[block] * block_step;
    const int64_t count = stop - start < CHUNK ? stop - start : CHUNK;
    for (int64_t n = 0; n < count; ++n) {
      if (offset == block_size) {
        offset = 0;
        page = pool + blocks[++block] * block_step;
      }
      keys[n] = page + offset++ * position_step;
    }
    for (int64_t n = count; n < CHUNK; ++n) keys[n] = zero;
  }
};

// Brings rows of several heads near, K and V.
template <class T>
static void fetch_rows(const T* const* keys, int64_t numbers, int64_t values_after_keys) {
  for (int64_t n = 0; n < CHUNK; ++n) {
    for (int64_t at = 0; at < numbers; at += 64 / static_cast<int64_t>(sizeof(T))) {
      _mm_prefetch(reinterpret_cast<const char*>(keys[n] + at), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(keys[n] + values_after_keys + at), _MM_HINT_T1);
    }
  }
}

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

// Packs V of a chunk: a word is one dimension of one or two positions. Places beyond the head stay 0.
template <class T>
static void pack_values(const T* const* values, int64_t head_size, uint32_t* out) {
  const int64_t words = words_of<T>(CHUNK);
  for (int64_t word = 0; word < words; ++word) {
    for (int64_t at = 0; at < head_size; at += LANES) {
      pack_value_word(values + word * WORD_NUMBERS<T>, at, head_size - at,
                      out + (at / PANEL * words + word) * PANEL + at % PANEL);
    }
  }
}

// found[r][0..63] += rows r of weights times 64 dimensions of V of a chunk, which is read where it lies. A part is one
// number.
template <class T, int ROWS>
static NOT_INLINED void weighted_tile(const uint32_t* weights, const T* const* values, int64_t at, float* found) {
  constexpr int VECTORS = vectors_for(ROWS);
  constexpr int64_t VALUE_WORDS = CHUNK / WORD_NUMBERS<T>;
  const Multiplicands<T, ROWS> numbers(weights, VALUE_WORDS, VALUE_WORDS);
  for (int first = 0; first < PANEL; first += VECTORS * LANES) {
    Sums<ROWS, VECTORS> sum;
    begin_sums<ROWS, VECTORS>(sum, found + first, false);
    for (int64_t word = 0; word < VALUE_WORDS; ++word) {
      for (int part = 0; part < PARTS<T>; ++part) {
        Words w[VECTORS];
        const T* from = values[word * PARTS<T> + part] + at + first;
        for (int v = 0; v < VECTORS; ++v) w[v] = as_words(load_widened(from + v * LANES));
        add_part<T, ROWS, VECTORS>(sum, numbers, word, part, w);
      }
    }
    write_sums<ROWS, VECTORS>(sum, found + first);
  }
}

// Does nothing, and returns false, where V is better packed first: for many rows, for a product of bfloat16, and for heads
// that are not whole panels.
template <class T>
static bool weigh_values(const uint32_t* weights, int64_t rows, const T* const* values, int64_t head_size,
                         float* found) {
  if (PARTS<T> != WORD_NUMBERS<T> || rows > 4 || head_size % PANEL != 0) return false;
  for (int64_t at = 0; at < head_size; at += PANEL, found += rows * PANEL) {
    switch (rows) {
      case 1: weighted_tile<T, 1>(weights, values, at, found); break;
      case 2: weighted_tile<T, 2>(weights, values, at, found); break;
      case 3: weighted_tile<T, 3>(weights, values, at, found); break;
      case 4: weighted_tile<T, 4>(weights, values, at, found); break;
    }
  }
  return true;
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

// What is the same for all units of a layer. `queries` and `found` are [row, heads * head size], `row_step` numbers apart.
template <class T>
struct AttentionOfLayer {
  const Decoder& decoder;
  int64_t window;
  const T* queries;
  T* found;
  int64_t row_step;
};

// The attention of one unit: `rows`, for `head_count` kv heads from `first_head` on. `pages` are those of the first.
// Until it writes, what it finds is in its own memory.
template <class T>
class UnitOfAttention {
 public:
  UnitOfAttention(const AttentionOfLayer<T>& layer, const Pages<T>& pages, const QueryRows& rows, int64_t first_head,
                  int64_t head_count, const AttentionScratch<T>& scratch)
      : layer_(layer), pages_(pages), rows_(rows), scratch_(scratch), first_head_(first_head), head_count_(head_count),
        size_(layer.decoder.head_size), group_(layer.decoder.heads / layer.decoder.kv_heads),
        count_(rows.row_count * group_), panels_((size_ + PANEL - 1) / PANEL), words_(words_of<T>(size_)) {}

  void attend() {
    begin();
    const int64_t stop = rows_.position + rows_.row_count, window = layer_.window;
    const int64_t first = window > 0 && rows_.position >= window ? rows_.position - window + 1 : 0;
    const int64_t values_after_keys = pages_.block_size * pages_.position_step;
    const T *here[CHUNK], *next[CHUNK], *rows[CHUNK];
    pages_.find_keys(first / CHUNK * CHUNK, stop, scratch_.zero, next);
    fetch_rows(next, head_count_ * size_, values_after_keys);
    for (int64_t start = first / CHUNK * CHUNK; start < stop; start += CHUNK) {
      std::memcpy(here, next, sizeof(here));
      if (start + CHUNK < stop) {
        pages_.find_keys(start + CHUNK, stop, scratch_.zero, next);
        fetch_rows(next, head_count_ * size_, values_after_keys);
      }
      for (int64_t head = 0; head < head_count_; ++head) {
        for (int64_t n = 0; n < CHUNK; ++n) rows[n] = here[n] == scratch_.zero ? here[n] : here[n] + head * size_;
        pack_keys(rows, size_, scratch_.keys);
        times_panel<T>(reinterpret_cast<const uint32_t*>(scratch_.queries + head * count_ * words_ * WORD_NUMBERS<T>),
                       words_, count_, scratch_.keys, words_, false, true, scratch_.scores);
        weigh(start, head);
        for (const T*& row : rows) row = row == scratch_.zero ? row : row + values_after_keys;
        const uint32_t* weights = reinterpret_cast<const uint32_t*>(scratch_.weights);
        if (weigh_values(weights, count_, rows, size_, found(head, 0))) continue;
        pack_values(rows, size_, scratch_.values);
        for (int64_t panel = 0; panel < panels_; ++panel) {
          times_panel<T>(weights, VALUE_WORDS, count_,
                         scratch_.values + panel * VALUE_WORDS * PANEL, VALUE_WORDS, false, false, found(head, panel));
        }
      }
    }
  }

  void write() {
    for (int64_t head = 0; head < head_count_; ++head) {
      for (int64_t query = 0; query < count_; ++query) {
        for (int64_t panel = 0; panel < panels_; ++panel) {
          float* row = found(head, panel) + query * PANEL;
          scale_row(row, 1.0f / scratch_.total[head * count_ + query]);
          const int64_t rest = size_ - panel * PANEL;
          convert(row, rest < PANEL ? rest : PANEL, layer_.found + place(head, query) + panel * PANEL);
        }
      }
    }
  }

 private:
  static constexpr int64_t VALUE_WORDS = CHUNK / WORD_NUMBERS<T>;

  int64_t place(int64_t head, int64_t query) const {
    return (rows_.first_row + query / group_) * layer_.row_step + ((first_head_ + head) * group_ + query % group_) * size_;
  }
  // [queries, PANEL]
  float* found(int64_t head, int64_t panel) const { return scratch_.found + (head * panels_ + panel) * count_ * PANEL; }

  void begin() {
    for (int64_t head = 0; head < head_count_; ++head) {
      for (int64_t query = 0; query < count_; ++query) {
        const int64_t number = head * count_ + query;
        std::memcpy(scratch_.queries + number * words_ * WORD_NUMBERS<T>, layer_.queries + place(head, query),
                    size_ * sizeof(T));
        scratch_.greatest[number] = -INFINITY;
        scratch_.total[number] = 0;
      }
    }
    std::memset(scratch_.found, 0, head_count_ * panels_ * count_ * PANEL * sizeof(float));
  }

  void weigh(int64_t start, int64_t head) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(size_));
    for (int64_t query = 0; query < count_; ++query) {
      const int64_t position = rows_.position + query / group_, number = head * count_ + query;
      const int64_t first_seen = layer_.window > 0 ? position - layer_.window + 1 - start : 0;
      const float correction =
          weigh_scores(scratch_.scores + query * CHUNK, scale, first_seen, position - start, scratch_.greatest + number,
                       scratch_.total + number, scratch_.weights + query * CHUNK);
      if (correction == 1.0f) continue;
      for (int64_t panel = 0; panel < panels_; ++panel) scale_row(found(head, panel) + query * PANEL, correction);
    }
  }

  static void scale_row(float* row, float factor) {
    for (int64_t at = 0; at < PANEL; at += LANES) store(row + at, load(row + at) * all(factor));
  }

  const AttentionOfLayer<T>& layer_;
  const Pages<T>& pages_;
  const QueryRows& rows_;
  const AttentionScratch<T>& scratch_;
  const int64_t first_head_, head_count_, size_, group_, count_, panels_, words_;
};

}  // namespace INSTRUCTION_SET
