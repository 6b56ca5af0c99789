// Products with panels of coded bfloat16 weights (decoder.h). They have the bits of products with the words themselves.
#pragma once
#include "products.h"

namespace INSTRUCTION_SET {

// More rows of a unit share what codes are turned into.
constexpr int64_t CODED_UNIT_ROWS = 256;

// So many rows at most are multiplied with words that go from codes to registers. Tiles read memory.
#if defined(WITH_TILES)
constexpr int64_t CODED_ROWS = 0;
#elif defined(__AVX512BF16__)
constexpr int64_t CODED_ROWS = 6;
#elif defined(__AVX512F__)
constexpr int64_t CODED_ROWS = 4;
#else
constexpr int64_t CODED_ROWS = 2;
#endif

// A panel, or what is left of it: `whole` and `whole_at` are at the next word that is not coded.
struct CodedPanel {
  const uint8_t* bytes;
  const uint8_t* upper_bytes;
  const int32_t* whole_at;
  const uint32_t* whole;
};

static inline CodedPanel coded_panel(const Coded& coded, int64_t panel, int64_t words) {
  const int64_t first = coded.first_whole[panel];
  return {coded.bytes + panel * words * CODED_BYTES, coded.upper_bytes + panel * 16, coded.whole_at + first,
          coded.whole + first * PANEL};
}

constexpr int CODED_LINES = CODED_BYTES / LINE_BYTES;

// The next word that is not coded, in good time.
static inline void fetch_whole(const uint32_t* whole) {
  for (int64_t at = 0; at < PANEL; at += LINE_WORDS) _mm_prefetch(whole + at, _MM_HINT_T0);
}

// Rows of x times words `begin` to `stop` of a panel, of which it takes those that are not coded. AHEAD_LINES for each
// word are fetched from `ahead` on. With less than all of CODED_LINES further rows follow, and words are written to `to`.
template <int ROWS, int AHEAD_LINES>
static NOT_INLINED void coded_tile(const uint32_t* x, int64_t x_step, CodedPanel* panel, int64_t begin, int64_t stop,
                                   bool fresh, float* sums, const char* ahead, uint32_t* to) {
  constexpr int VECTORS = vectors_for(ROWS);
  static_assert(VECTORS == 4 || VECTORS == 2, "two vectors are turned into words together");
  const Multiplicands<Bfloat16, ROWS> numbers(x + begin, x_step, stop - begin);
  constexpr bool KEEPS = AHEAD_LINES < CODED_LINES;
  const UpperBytes upper(panel->upper_bytes);
  const CodedPanel before = *panel;
  for (int first = 0; first < PANEL; first += VECTORS * LANES) {
    Sums<ROWS, VECTORS> found;
    begin_sums<ROWS, VECTORS>(found, sums + first, fresh);
    const uint8_t* bytes = before.bytes + begin * CODED_BYTES;
    const int32_t* whole_at = before.whole_at;
    const uint32_t* whole = before.whole;
    for (int64_t word = begin; word < stop; ++word, bytes += CODED_BYTES) {
      for (int line = 0; first == 0 && line < AHEAD_LINES; ++line, ahead += LINE_BYTES) {
        _mm_prefetch(ahead, NEAR);
      }
      Words w[VECTORS];
      if (word == *whole_at) {
        for (int v = 0; v < VECTORS; ++v) w[v] = load_words(whole + first + v * LANES);
        ++whole_at;
        whole += PANEL;
        fetch_whole(whole);
      } else if constexpr (VECTORS == 4) {
        words_of_codes<0>(bytes, upper, w);
        words_of_codes<1>(bytes, upper, w + 2);
      } else if (first == 0) {
        words_of_codes<0>(bytes, upper, w);
      } else {
        words_of_codes<1>(bytes, upper, w);
      }
      const int64_t at = (word - begin) * PANEL + first;
      for (int v = 0; KEEPS && !TAKES_APART<Bfloat16> && v < VECTORS; ++v) store_words(to + at + v * LANES, w[v]);
      for (int part = 0; part < PARTS<Bfloat16>; ++part) {
        Words parts[VECTORS];
        for (int v = 0; v < VECTORS; ++v) parts[v] = part_of<Bfloat16>(w[v], part);
        for (int v = 0; KEEPS && TAKES_APART<Bfloat16> && v < VECTORS; ++v) {
          store_words(to + part * Apart::PART_STEP + at + v * LANES, parts[v]);
        }
        add_part<Bfloat16, ROWS, VECTORS>(found, numbers, word - begin, part, parts);
      }
    }
    write_sums<ROWS, VECTORS>(found, sums + first);
    panel->whole_at = whole_at;
    panel->whole = whole;
  }
}

template <int ROWS, int AHEAD_LINES>
static void coded_rows(const uint32_t* x, int64_t x_step, CodedPanel* panel, int64_t begin, int64_t stop, float* sums,
                       const char* ahead, uint32_t* to) {
  if constexpr (ROWS <= CODED_ROWS) {
    coded_tile<ROWS, AHEAD_LINES>(x, x_step, panel, begin, stop, begin == 0, sums, ahead, to);
  }
}

template <int AHEAD_LINES>
static void coded_tile_of(int64_t rows, const uint32_t* x, int64_t x_step, CodedPanel* panel, int64_t begin,
                          int64_t stop, float* sums, const char* ahead, uint32_t* to) {
  switch (rows) {
    case 1: return coded_rows<1, AHEAD_LINES>(x, x_step, panel, begin, stop, sums, ahead, to);
    case 2: return coded_rows<2, AHEAD_LINES>(x, x_step, panel, begin, stop, sums, ahead, to);
    case 3: return coded_rows<3, AHEAD_LINES>(x, x_step, panel, begin, stop, sums, ahead, to);
    case 4: return coded_rows<4, AHEAD_LINES>(x, x_step, panel, begin, stop, sums, ahead, to);
    case 5: return coded_rows<5, AHEAD_LINES>(x, x_step, panel, begin, stop, sums, ahead, to);
    case 6: return coded_rows<6, AHEAD_LINES>(x, x_step, panel, begin, stop, sums, ahead, to);
  }
}

// `after` is where the panel's bytes lie that is likely to be the next.
static void times_few_coded(const uint32_t* x, int64_t x_step, int64_t rows, CodedPanel panel, int64_t words,
                            const void* after, float* sums) {
  constexpr int64_t FETCHED = AHEAD_BYTES / CODED_BYTES;
  fetch_whole(panel.whole);
  const int64_t piece_words = PARTS<Bfloat16> == 1 ? words : PIECE_WORDS;
  for (int64_t begin = 0, stop; begin < words; begin = stop) {
    stop = least(begin + piece_words, words);
    // While the last words are multiplied, the next panel's first ones are fetched.
    const int64_t last = greatest(0, words - FETCHED);
    if (begin < last) stop = least(stop, last);
    const void* ahead = begin < last ? panel.bytes + (begin + FETCHED) * CODED_BYTES
                                     : static_cast<const uint8_t*>(after) + (begin - last) * CODED_BYTES;
    const char* lines = static_cast<const char*>(ahead);
    coded_tile_of<CODED_LINES>(rows, x, x_step, &panel, begin, stop, sums, lines, nullptr);
  }
}

// Words `begin` to `stop` of a panel, of which it takes those that are not coded.
static NOT_INLINED void decode(CodedPanel* panel, int64_t begin, int64_t stop, uint32_t* to) {
  const UpperBytes upper(panel->upper_bytes);
  const uint8_t* bytes = panel->bytes + begin * CODED_BYTES;
  for (int64_t word = begin; word < stop; ++word, bytes += CODED_BYTES, to += PANEL) {
    Words w[PANEL / LANES];
    words_of_codes<0>(bytes, upper, w);
    words_of_codes<1>(bytes, upper, w + 2);
    for (int v = 0; v < PANEL / LANES; ++v) store_words(to + v * LANES, w[v]);
  }
  to -= (stop - begin) * PANEL;
  for (; *panel->whole_at < stop; ++panel->whole_at, panel->whole += PANEL) {
    std::memcpy(to + (*panel->whole_at - begin) * PANEL, panel->whole, PANEL * sizeof(uint32_t));
  }
}

// Rows of x times a panel, as times_panel. Of more rows than CODED_ROWS, a piece's words are written as they are
// multiplied with the first ones, for the others.
static void times_coded_panel(const uint32_t* x, int64_t x_step, int64_t rows, CodedPanel panel, int64_t words,
                              const void* after, uint32_t* piece, float* sums) {
  if (rows <= CODED_ROWS) return times_few_coded(x, x_step, rows, panel, words, after, sums);
  const int64_t tiles = (rows + TILE_ROWS<Bfloat16> - 1) / TILE_ROWS<Bfloat16>, piece_words = even_piece(words);
  fetch_whole(panel.whole);
  for (int64_t begin = 0, stop; begin < words; begin = stop) {
    stop = least(begin + piece_words, words);
    const int64_t count = stop - begin, lines = count * LINE_BYTES;
    const char* next = static_cast<const char*>(stop < words ? panel.bytes + stop * CODED_BYTES : after);
    if (CODED_ROWS == 0) {
      decode(&panel, begin, stop, piece);
      times_piece<Bfloat16>(x + begin, x_step, rows, piece, count, {next}, begin == 0, sums);
      continue;
    }
    // The next piece's lines are fetched evenly, as far as there are tiles: memory answers only so many at a time.
    int64_t row = least(CODED_ROWS, rows / tiles);
    if (rows - row <= TILE_ROWS<Bfloat16>) {
      coded_tile_of<2>(row, x, x_step, &panel, begin, stop, sums, next, piece);
      next += 2 * lines;
    } else {
      coded_tile_of<1>(row, x, x_step, &panel, begin, stop, sums, next, piece);
      next += lines;
    }
    const int64_t first = row, others = (rows - row + TILE_ROWS<Bfloat16> - 1) / TILE_ROWS<Bfloat16>;
    for (int64_t number = 0; number < others; ++number) {
      const int64_t end = first + (rows - first) * (number + 1) / others;
      const uint32_t* from = x + row * x_step + begin;
      const uint32_t* x_after = end < rows ? x + end * x_step + begin : x + stop;
      if (number < 2) {
        tile_of<Bfloat16, 1, OfMade<Bfloat16>>(end - row, from, x_step, piece, count, begin == 0, sums + row * PANEL,
                                               {next}, x_after);
        next += lines;
      } else {
        tile_of<Bfloat16, 0, OfMade<Bfloat16>>(end - row, from, x_step, piece, count, begin == 0, sums + row * PANEL,
                                               {}, x_after);
      }
      row = end;
    }
  }
}

// The words of one output of a panel.
static inline void decode_output(CodedPanel panel, int64_t words, int64_t output, void* to) {
  const int64_t pair = output / (2 * LANES), vector = output / LANES % 2, lane = output % LANES;
  const int64_t place = lane / 4 * 16 + vector * 8 + lane % 4 * 2;
  const auto write_word = [to](int64_t word, uint32_t x) { std::memcpy(static_cast<uint32_t*>(to) + word, &x, sizeof(x)); };
  for (int64_t word = 0; word < words; ++word) {
    const uint8_t* lower = panel.bytes + word * CODED_BYTES + pair * PANEL + place;
    const uint8_t* codes = panel.bytes + word * CODED_BYTES + 2 * PANEL + place;
    const uint32_t first = panel.upper_bytes[codes[0] >> 4 * pair & 15];
    const uint32_t second = panel.upper_bytes[codes[1] >> 4 * pair & 15];
    write_word(word, lower[0] | first << 8 | static_cast<uint32_t>(lower[1]) << 16 | second << 24);
  }
  for (; *panel.whole_at < words; ++panel.whole_at, panel.whole += PANEL) write_word(*panel.whole_at, panel.whole[output]);
}

}  // namespace INSTRUCTION_SET
