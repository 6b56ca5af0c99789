// Codes bfloat16 weights in 12 bits, without loss (decoder.h).
//
// Theory of operation
// -------------------
// Trained weights lie around zero: the eight bits of their exponents say less than three (T. Zhang et al., "70% Size,
// 100% Accuracy", 2025, codes them by Huffman's method, for GPUs). Here a code has a fixed length, so that a processor
// turns 64 of them into bytes by one shuffle. It stands for a number's upper byte: the sign and seven bits of the exponent,
// of which 16 cover a range of 2^16 around the most frequent.
//
// Of each word of a panel come the lower bytes, in the order in which two halves of them interleave with their upper bytes
// to words: in each quarter of 16 bytes those of four outputs, then those of the four that are 16 outputs further. The
// code of byte b is in the lower half of byte b of the codes, that of byte 64 + b in the upper half.
#include "decoder.h"

namespace {

constexpr int64_t PANEL = 64, LANES = 16, BYTES = 2 * PANEL, CODES = 16;

// Where the first byte of an output's word is among the lower bytes; the second is behind it.
int64_t place_of(int64_t output) {
  const int64_t pair = output / (2 * LANES), vector = output / LANES % 2, lane = output % LANES;
  return pair * PANEL + lane / 4 * 16 + vector * 8 + lane % 4 * 2;
}

uint8_t upper_byte(const uint32_t* words, int64_t number) {
  return static_cast<uint8_t>(words[number / 2] >> (number % 2 * 16 + 8));
}

}  // namespace

int64_t fastserve_code(const uint32_t* panel, int64_t words, uint8_t* bytes, uint8_t* upper_bytes, int32_t* whole_at) {
  int64_t counts[256] = {};
  for (int64_t number = 0; number < words * BYTES; ++number) ++counts[upper_byte(panel, number)];
  constexpr uint8_t NONE = 255;
  uint8_t codes[256];
  for (int64_t byte = 0; byte < 256; ++byte) codes[byte] = NONE;
  for (int64_t code = 0; code < CODES; ++code) {
    int64_t most = 0;
    for (int64_t byte = 1; byte < 256; ++byte) {
      if (counts[byte] > counts[most]) most = byte;
    }
    upper_bytes[code] = static_cast<uint8_t>(most);
    if (counts[most] > 0) codes[most] = static_cast<uint8_t>(code);
    counts[most] = 0;
  }
  int64_t places[PANEL];
  for (int64_t output = 0; output < PANEL; ++output) places[output] = place_of(output);
  int64_t whole = 0;
  for (int64_t word = 0; word < words; ++word, panel += PANEL, bytes += CODED_BYTES) {
    uint8_t found[BYTES], all = 0;
    for (int64_t number = 0; number < BYTES; ++number) {
      const int64_t place = places[number / 2] + number % 2;
      bytes[place] = static_cast<uint8_t>(panel[number / 2] >> (number % 2 * 16));
      found[place] = codes[upper_byte(panel, number)];
      all |= found[place];
    }
    for (int64_t place = 0; place < PANEL; ++place) {
      bytes[BYTES + place] = static_cast<uint8_t>((found[place] & 15) | found[PANEL + place] << 4);
    }
    if (all == NONE) whole_at[whole++] = static_cast<int32_t>(word);
  }
  return whole;
}
