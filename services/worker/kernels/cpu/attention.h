// Attention over the paged pool.
//
// Theory of operation
// -------------------
// A unit of work is a few query rows of one sequence and one kv head, with all query heads that share it; or, if there
// is one row, several kv heads, whose keys lie side by side in memory. It walks the keys in chunks of 64 positions,
// counted from position 0 (chunks.h). The softmax is taken chunk by chunk: the greatest score so far, the sum of
// exponentials and the weighted values are corrected whenever a greater one comes.
//
// Many rows share what is packed of a chunk. A decode has a single row, for which K and V are read where they lie, and
// mostly waits for them: while it computes a chunk it fetches the next one, and with the last chunk the first one of the
// unit that is likely to be this thread's next. But every row takes the same chunks, and every sum its numbers, in the
// same order wherever it is computed; a chunk or a position that a row does not look at changes nothing.
#pragma once
#include "chunks.h"
#include "rows.h"

namespace INSTRUCTION_SET {

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
  uint32_t* columns;  // [heads, words of a head, 16]: the queries of a decode by tiles, side by side
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

  // Where K of positions start to stop - 1 is (at most CHUNK), and for the other places of the chunk, `zero`. Returns how
  // many positions these are.
  int64_t find_keys(int64_t start, int64_t stop, const T* zero, const T** keys) const {
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
    return count;
  }
};

// The chunk of the first position that a unit looks at.
static inline int64_t first_chunk(const QueryRows& rows, int64_t window) {
  return (window > 0 && rows.position >= window ? rows.position - window + 1 : 0) / CHUNK * CHUNK;
}

// Rows and where the positions of their sequence are.
template <class T>
struct PlacedRows {
  QueryRows rows;
  Pages<T> pages;

  // Of its first chunk.
  int64_t find_keys(int64_t window, const T* zero, const T** keys) const {
    const int64_t start = first_chunk(rows, window);
    return pages.find_keys(start, rows.position + rows.row_count, zero, keys);
  }
};

// What is the same for all units of a layer. `queries` and `found` are [row, heads * head size], `row_step` numbers apart.
template <class T>
struct AttentionOfLayer {
  const Decoder& decoder;
  int64_t window;
  const T* queries;
  T* found;
  int64_t row_step;
};

// The attention of one unit: its rows, for `head_count` kv heads from `first_head` on, which its pages are those of.
// Until it writes, what it finds is in its own memory.
template <class T>
class UnitOfAttention {
 public:
  UnitOfAttention(const AttentionOfLayer<T>& layer, const PlacedRows<T>& unit, int64_t first_head, int64_t head_count,
                  const AttentionScratch<T>& scratch)
      : layer_(layer), pages_(unit.pages), rows_(unit.rows), scratch_(scratch), first_head_(first_head),
        head_count_(head_count), size_(layer.decoder.head_size), group_(layer.decoder.heads / layer.decoder.kv_heads),
        count_(unit.rows.row_count * group_), panels_((size_ + PANEL - 1) / PANEL), words_(words_of<T>(size_)),
        to_values_(unit.pages.block_size * unit.pages.position_step) {}

  // `after`: what this thread is likely to attend to next.
  void attend(const PlacedRows<T>& after) {
    begin();
    const int64_t stop = rows_.position + rows_.row_count;
    const T *here[CHUNK], *next[CHUNK];
    int64_t start = first_chunk(rows_, layer_.window);
    int64_t next_positions = pages_.find_keys(start, stop, scratch_.zero, next);
    if (!is_decode()) fetch_all(next);
    for (; start < stop; start += CHUNK) {
      std::memcpy(here, next, sizeof(here));
      const int64_t positions = next_positions;
      const bool is_last = start + CHUNK >= stop;
      if (!is_last) next_positions = pages_.find_keys(start + CHUNK, stop, scratch_.zero, next);
      if (is_decode()) {
        if (is_last) next_positions = after.find_keys(layer_.window, scratch_.zero, next);
        decode_chunk(start, positions, here, next, next_positions);
      } else {
        if (!is_last) fetch_all(next);
        attend_chunk(start, here);
      }
    }
  }

  void write() {
    for (int64_t head = 0; head < head_count_; ++head) {
      for (int64_t query = 0; query < count_; ++query) {
        for (int64_t panel = 0; panel < panels_; ++panel) {
          float* row = found(head, panel) + query * PANEL;
          scale_row(row, 1.0f / scratch_.total[head * count_ + query]);
          if (packs_in_pairs<T>(size_)) in_order(row);
          const int64_t rest = size_ - panel * PANEL;
          convert(row, rest < PANEL ? rest : PANEL, layer_.found + place(head, query) + panel * PANEL);
        }
      }
    }
  }

 private:

  int64_t place(int64_t head, int64_t query) const {
    return (rows_.first_row + query / group_) * layer_.row_step + ((first_head_ + head) * group_ + query % group_) * size_;
  }
  // Whether keys are read where they lie. Tiles read 16 of a block at once.
  bool is_decode() const {
    if (rows_.row_count > 1 || size_ % PANEL != 0) return false;
    return !BY_TILES<T> || (group_ <= LANES && pages_.block_size % LANES == 0);
  }

  void fetch_all(const T* const* next) const {
    for (int64_t head = 0; head < head_count_; ++head) fetch_rows(next, head * size_, size_, to_values_);
  }

  void attend_chunk(int64_t start, const T* const* here) {
    const T* rows[CHUNK];
    for (int64_t head = 0; head < head_count_; ++head) {
      find_rows(here, head * size_, rows);
      pack_keys(rows, size_, scratch_.keys);
      times_panel<T>(queries(head), words_, count_, scratch_.keys, words_, nullptr, true, scores(head));
      weigh(start, head);
      find_rows(here, head * size_ + to_values_, rows);
      if (count_ <= MOST_TOGETHER && reads_values_in_place<T>(size_)) {
        add_values(weights(head), count_, rows, CHUNK, size_, found(head, 0), count_ * PANEL);
      } else {
        add_packed_values(head, rows);
      }
    }
  }

  void add_packed_values(int64_t head, const T* const* rows) {
    constexpr int64_t WORDS = VALUE_WORDS<T>;
    pack_values(rows, size_, scratch_.values);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      times_panel<T>(weights(head), WORDS, count_, scratch_.values + panel * WORDS * PANEL, WORDS, nullptr, false,
                     found(head, panel));
    }
  }

  // A chunk of a decode, of which it sees so many positions; `next` has `next_positions`. Step by step for all heads: a
  // step of one head waits for the one before it, but not for those of others.
  void decode_chunk(int64_t start, int64_t positions, const T* const* here, const T* const* next,
                    int64_t next_positions) {
    const T* rows[CHUNK];
    ChunkAhead<T> ahead(next, next_positions, head_count_ * size_, to_values_,
                        head_count_ * shares_of(count_, words_, positions));
    for (int64_t head = 0; head < head_count_; ++head) {
      find_rows(here, head * size_, rows);
      score(head, rows, positions, &ahead);
      if (BY_TILES<T>) fetch_rows(next, head * size_, size_, to_values_);
    }
    for (int64_t head = 0; head < head_count_; ++head) weigh(start, head);
    for (int64_t head = 0; head < head_count_; ++head) {
      find_rows(here, head * size_ + to_values_, rows);
      if (!reads_values_in_place<T>(size_)) {
        add_packed_values(head, rows);
        continue;
      }
      for (int64_t query = 0; query < count_; query += MOST_TOGETHER) {
        add_values(weights(head) + query * VALUE_WORDS<T>, least(MOST_TOGETHER, count_ - query), rows, positions, size_,
                   found(head, 0) + query * PANEL, count_ * PANEL);
      }
    }
  }

  void score(int64_t head, const T* const* keys, int64_t positions, ChunkAhead<T>* ahead) {
#if defined(WITH_TILES)
    if constexpr (BY_TILES<T>) {
      const uint32_t* columns = scratch_.columns + head * words_ * MOST_COLUMNS;
      return score_keys_by_tiles(columns, count_, keys, pages_.position_step, words_, positions, scores(head));
    }
#endif
    score_keys<T>(queries(head), count_, keys, words_, positions, scores(head), ahead);
  }

  // The rows that lie so many numbers behind; those of no position stay where they are.
  void find_rows(const T* const* from, int64_t numbers, const T** rows) const {
    for (int64_t n = 0; n < CHUNK; ++n) rows[n] = from[n] == scratch_.zero ? from[n] : from[n] + numbers;
  }

  const uint32_t* queries(int64_t head) const {
    return reinterpret_cast<const uint32_t*>(scratch_.queries) + head * count_ * words_;
  }
  float* scores(int64_t head) const { return scratch_.scores + head * count_ * CHUNK; }
  const uint32_t* weights(int64_t head) const {
    return reinterpret_cast<const uint32_t*>(scratch_.weights + head * count_ * CHUNK);
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
#if defined(WITH_TILES)
    for (int64_t head = 0; BY_TILES<T> && is_decode() && head < head_count_; ++head) {
      turn_queries(queries(head), count_, words_, scratch_.columns + head * words_ * MOST_COLUMNS);
    }
#endif
  }

  void weigh(int64_t start, int64_t head) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(size_));
    for (int64_t query = 0; query < count_; ++query) {
      const int64_t position = rows_.position + query / group_, number = head * count_ + query;
      const int64_t first_seen = layer_.window > 0 ? position - layer_.window + 1 - start : 0;
      const float correction = weigh_scores(scores(head) + query * CHUNK, scale, first_seen, position - start,
                                            scratch_.greatest + number, scratch_.total + number,
                                            scratch_.weights + number * CHUNK);
      if (correction == 1.0f) continue;
      for (int64_t panel = 0; panel < panels_; ++panel) scale_row(found(head, panel) + query * PANEL, correction);
    }
  }

  static void scale_row(float* row, float factor) {
    for (int64_t at = 0; at < PANEL; at += LANES) store(row + at, load(row + at) * all(factor));
  }

  // A panel in the order of its dimensions, which was that of read_pairs.
  static void in_order(float* row) {
    Vector sums[1][PANEL / LANES];
    for (int v = 0; v < PANEL / LANES; ++v) sums[0][v] = load(row + v * LANES);
    out_of_order_of_pairs<1, PANEL / LANES>(sums);
    for (int v = 0; v < PANEL / LANES; ++v) store(row + v * LANES, sums[0][v]);
  }

  const AttentionOfLayer<T>& layer_;
  const Pages<T> pages_;
  const QueryRows rows_;
  const AttentionScratch<T>& scratch_;
  const int64_t first_head_, head_count_, size_, group_, count_, panels_, words_, to_values_;
};

}  // namespace INSTRUCTION_SET
