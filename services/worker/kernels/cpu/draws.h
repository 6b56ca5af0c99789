// From a row of logits to a token: what sampling/sampler.py and sampling/draws.py say, number by number.
//
// Logits are taken relative to the row's greatest and divided by the temperature: nats, of which none is above 0. Their
// weights are e^nats. Cuts (top-k, top-p, min-p) leave the tokens above a border and some of those at it. The token is the
// winner of a race by weights, over chunks of ids and then within the winning chunk.
//
// The border is found without sorting. Numbers that are not above 0 are in the order of their bits but for the sign, so
// they are counted by their first bits, then those that share the border's first bits by the next ones, and so on.
#pragma once
#include "rows.h"

namespace INSTRUCTION_SET {

// A number by its bits but for the sign.
struct Weighed {
  uint32_t bits;
  float weight;
};

class Drawing {
 public:
  // `members` has room for `count` of them.
  Drawing(const float* logits, int64_t count, const Draw& draw, Weighed* members)
      : logits_(logits), count_(count), draw_(draw), members_(members),
        greatest_(all(logits[place_of_greatest(logits, count)])), temperature_(all(draw.temperature)),
        least_(draw.least_nats), last_at_least_(count) {
    if (draw.top_k > 0 || draw.top_p < 1.0) cut();
  }

  // The token of this number of the job's output.
  int64_t winner(int64_t number) const {
    const uint64_t key = mixed(draw_.stream + (static_cast<uint64_t>(number) + 1) * WEYL);
    Race chunks{0};
    for (int64_t begin = 0; begin < count_; begin += CHUNK_IDS) {
      float weights[CHUNK_IDS];
      weigh_chunk(begin, weights);
      const Vector sum = (load(weights) + load(weights + LANES)) + (load(weights + 2 * LANES) + load(weights + 3 * LANES));
      const int64_t chunk = begin / CHUNK_IDS;
      chunks.enter(chunk, sum_of(sum), key, 2 * chunk);
    }
    float weights[CHUNK_IDS];
    const int64_t begin = chunks.winner * CHUNK_IDS;
    weigh_chunk(begin, weights);
    Race tokens{begin};  // where no weight is a number, any token is as good
    for (int64_t id = begin; id < begin + CHUNK_IDS && id < count_; ++id) {
      tokens.enter(id, weights[id - begin], key, 2 * id + 1);
    }
    return tokens.winner;
  }

 private:
  static constexpr int64_t CHUNK_IDS = 64;
  static constexpr uint64_t WEYL = 0x9E3779B97F4A7C15;

  struct Race {
    int64_t winner;
    double best = 0.0;

    void enter(int64_t id, float weight, uint64_t key, int64_t index) {
      if (!(weight > 0.0f)) return;
      const double score = static_cast<double>(weight) / -__builtin_log(uniform(key, static_cast<uint64_t>(index)));
      if (score > best) {
        best = score;
        winner = id;
      }
    }
  };

  static uint64_t mixed(uint64_t value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    return value ^ value >> 31;
  }

  static double uniform(uint64_t key, uint64_t index) {
    const double number = (static_cast<double>(mixed(key + (index + 1) * WEYL) >> 11) + 0.5) * 0x1p-53;
    return number < 1.0 - 0x1p-53 ? number : 1.0 - 0x1p-53;
  }

  // --- weights ------------------------------------------------------------------------------------------------------

  // Of LANES numbers; those beyond the row's end are cut.
  Vector nats(int64_t at) const {
    if (at + LANES <= count_) return (load(logits_ + at) - greatest_) / temperature_;
    float rest[LANES];
    for (int64_t i = 0; i < LANES; ++i) rest[i] = at + i < count_ ? logits_[at + i] : -INFINITY;
    return (load(rest) - greatest_) / temperature_;
  }

  void weigh_chunk(int64_t begin, float* weights) const {
    for (int64_t part = 0; part < CHUNK_IDS; part += LANES) {
      const int64_t at = begin + part;
      const Vector of_part = nats(at);
      store(weights + part, zero_where_less(exponential(of_part), of_part, all(least_)));
      if (at + LANES <= last_at_least_ + 1) continue;
      float numbers[LANES];
      store(numbers, of_part);
      for (int64_t i = 0; i < LANES; ++i) {
        if (at + i > last_at_least_ && numbers[i] == least_) weights[part + i] = 0;
      }
    }
  }

  // --- cuts ---------------------------------------------------------------------------------------------------------

  static constexpr int LEVELS = 3;
  static constexpr int SHIFTS[LEVELS] = {20, 9, 0};
  static constexpr int BINS = 2048;

  // Where a cut is: a number by its bits, how many there are of it, and how many of these are kept. By default it is
  // beyond all numbers.
  struct Border {
    uint32_t bits = 0xFFFFFFFF;
    int64_t equals = 0;
    int64_t kept = 0;
    int64_t above = 0;        // how many are greater
    double weight_above = 0;  // and what these weigh
  };

  struct Histogram {
    int64_t counts[BINS];
    double weights[BINS];

    void clear() {
      std::memset(counts, 0, sizeof(counts));
      std::memset(weights, 0, sizeof(weights));
    }

    void count(uint32_t bin, float weight) {
      ++counts[bin];
      weights[bin] += static_cast<double>(weight);
    }
  };

  static uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    return bits & 0x7FFFFFFF;
  }

  static float number_of(uint32_t bits) {
    bits |= 0x80000000;
    float number;
    std::memcpy(&number, &bits, sizeof(number));
    return number;
  }

  static double weight_of(uint32_t bits) {
    float weights[LANES];
    store(weights, exponential(all(number_of(bits))));
    return static_cast<double>(weights[0]);
  }

  // `use` gets the bits and the weight of each number.
  template <class Use>
  void for_all(Use use) const {
    for (int64_t at = 0; at < count_; at += LANES) {
      float numbers[LANES], weights[LANES];
      const Vector of_part = nats(at);
      store(numbers, of_part);
      store(weights, exponential(of_part));
      for (int64_t i = 0; i < LANES && at + i < count_; ++i) use(bits_of(numbers[i]), weights[i]);
    }
  }

  void cut() {
    Histogram first;
    first.clear();
    double total = 0;
    for_all([&](uint32_t bits, float weight) {
      first.count(bits >> SHIFTS[0], weight);
      total += static_cast<double>(weight);
    });
    Border border;
    if (draw_.top_k > 0 && draw_.top_k < count_) {
      border = border_where(first, [this](int64_t count, double) { return count >= draw_.top_k; });
      border.kept = draw_.top_k - border.above;
      total = border.weight_above + static_cast<double>(border.kept) * weight_of(border.bits);
    }
    if (draw_.top_p < 1.0) {
      const double wanted = draw_.top_p * total;
      Border found = border_where(first, [wanted](int64_t, double weight) { return weight >= wanted; });
      found.kept = kept_for(wanted, found);
      if (found.bits < border.bits || (found.bits == border.bits && found.kept < border.kept)) border = found;
    }
    if (border.bits == Border{}.bits || number_of(border.bits) < least_) return;  // or min-p cuts more
    least_ = number_of(border.bits);
    if (border.kept < border.equals) last_at_least_ = place_of_equal(least_, border.kept);
  }

  // How many of the numbers at the border it takes for this weight, at least one.
  static int64_t kept_for(double wanted, const Border& border) {
    if (border.equals == 0) return 0;
    const double weight = weight_of(border.bits);
    int64_t kept = 1;
    while (kept < border.equals && border.weight_above + static_cast<double>(kept) * weight < wanted) ++kept;
    return kept;
  }

  // At the first number, from the greatest on, with which count and weight reach what is asked for.
  template <class Reaches>
  Border border_where(const Histogram& first, Reaches reaches) {
    Border border;
    int64_t bin = step_to(first, BINS, border, reaches);
    if (bin == BINS) return Border{};
    uint32_t prefix = static_cast<uint32_t>(bin);
    int64_t member_count = 0;
    for_all([&](uint32_t bits, float weight) {
      if (bits >> SHIFTS[0] == prefix) members_[member_count++] = {bits, weight};
    });
    Histogram next;
    for (int level = 1; level < LEVELS; ++level) {
      const int64_t bins = int64_t{1} << (SHIFTS[level - 1] - SHIFTS[level]);
      next.clear();
      for (int64_t member = 0; member < member_count; ++member) {
        const auto [bits, weight] = members_[member];
        if (bits >> SHIFTS[level - 1] != prefix) continue;
        next.count(bits >> SHIFTS[level] & static_cast<uint32_t>(bins - 1), weight);
      }
      bin = step_to(next, bins, border, reaches);
      if (bin == bins) bin = last_of(next, bins, border);
      prefix = prefix * static_cast<uint32_t>(bins) + static_cast<uint32_t>(bin);
    }
    border.bits = prefix;
    border.equals = next.counts[bin];
    return border;
  }

  // Adds bins to what is above the border, up to the one that reaches what is asked for.
  template <class Reaches>
  static int64_t step_to(const Histogram& histogram, int64_t bins, Border& border, Reaches reaches) {
    for (int64_t bin = 0; bin < bins; ++bin) {
      const int64_t count = border.above + histogram.counts[bin];
      const double weight = border.weight_above + histogram.weights[bin];
      if (histogram.counts[bin] > 0 && reaches(count, weight)) return bin;
      border.above = count;
      border.weight_above = weight;
    }
    return bins;
  }

  // The parts of a bin may add up to a rounding less than the bin: then the border is at its last number.
  static int64_t last_of(const Histogram& histogram, int64_t bins, Border& border) {
    int64_t bin = bins - 1;
    while (bin > 0 && histogram.counts[bin] == 0) --bin;
    border.above -= histogram.counts[bin];
    border.weight_above -= histogram.weights[bin];
    return bin;
  }

  // Where the n-th number equal to this one is.
  int64_t place_of_equal(float number, int64_t n) const {
    for (int64_t at = 0; at < count_; at += LANES) {
      float numbers[LANES];
      store(numbers, nats(at));
      for (int64_t i = 0; i < LANES && at + i < count_; ++i) {
        if (numbers[i] == number && --n == 0) return at + i;
      }
    }
    return count_;
  }

  const float* logits_;
  const int64_t count_;
  const Draw& draw_;
  Weighed* members_;
  const Vector greatest_, temperature_;
  float least_;            // numbers below this are cut
  int64_t last_at_least_;  // and of those equal to it the ones with a greater id
};

static void adjust(float* logits, const Adjustment& adjustment) {
  for (int64_t at = 0; at < adjustment.bias_count; ++at) logits[adjustment.bias_ids[at]] += adjustment.biases[at];
  if (adjustment.seen_ids == nullptr) return;
  for (int64_t at = 0; at < adjustment.seen_count; ++at) {
    const float times = adjustment.seen_counts[at], repetition = adjustment.repetition_penalty;
    float& logit = logits[adjustment.seen_ids[at]];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    logit = logit - adjustment.frequency_penalty * times - adjustment.presence_penalty * (times > 0 ? 1.0f : 0.0f);
  }
}

static void count_as_seen(Adjustment* adjustment, int64_t token) {
  if (adjustment->seen_ids == nullptr) return;
  int64_t at = 0;
  while (at < adjustment->seen_count && adjustment->seen_ids[at] != token) ++at;
  if (at == adjustment->seen_count) {
    adjustment->seen_ids[at] = token;
    adjustment->seen_counts[at] = 0;
    ++adjustment->seen_count;
  }
  adjustment->seen_counts[at] += 1;
}

// The next token of a job, `number` after the one that the draw names.
static inline int64_t drawn_token(const float* logits, int64_t count, const Draw& draw, int64_t ahead,
                                  Weighed* members) {
  if (draw.temperature == 0.0f) return place_of_greatest(logits, count);
  return Drawing(logits, count, draw, members).winner(draw.number + ahead);
}

}  // namespace INSTRUCTION_SET
